//! Collects from the machines of a cluster everything that [`super::examine`] needs: from all
//! machines at the same time, each with a time limit.

use std::net::IpAddr;
use std::time::Duration;

use jackalope_fleet::facts::at_once;
use jackalope_fleet::hostfile::Hostfile;
use jackalope_fleet::shell::{Shell, ShellError, ShellErrorKind};

use super::{ExaminedNode, Ping};
use crate::probe::{self, ModelFile};
use crate::report::NodeReport;

/// Time for a machine's report, and then for its pings and file list: 20 s in all.
const REPORT_TIMEOUT: Duration = Duration::from_secs(14);
const SECOND_TIMEOUT: Duration = Duration::from_secs(6);

/// Time for hashing, which reads the whole model.
const HASH_TIMEOUT: Duration = Duration::from_secs(1800);

/// The machine that sends pings to those that could not be probed.
const HERE: &str = "127.0.0.1";

/// What to collect from the machines.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "a shell is not shown")]
pub struct Ask<'a> {
    /// Runs the scripts.
    pub shell: &'a dyn Shell,
    /// The machines as the hostfile describes them.
    pub hostfile: Option<&'a Hostfile>,
    /// Folder of a model to compare.
    pub model: Option<&'a str>,
    /// True to compare the model's files by hash.
    pub hashes: bool,
}

/// Returns the names of a hostfile's machines, each once.
pub fn names(hostfile: &Hostfile) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for host in &hostfile.hosts {
        if !names.contains(&host.name()) {
            names.push(host.name());
        }
    }
    names
}

impl Ask<'_> {
    /// Probes all machines, and sends pings from here to those that could not be probed.
    pub fn look(&self, names: &[String]) -> (Vec<ExaminedNode>, Vec<Ping>) {
        let reports = probe::reports(self.shell, names, REPORT_TIMEOUT);
        let looked: Vec<(&String, &Result<NodeReport, ShellError>)> =
            names.iter().zip(&reports).collect();
        let more = at_once(&looked, |(name, report)| match report {
            Ok(report) => (self.model_of(name), self.pings(name, report, &looked)),
            Err(_) => (None, Vec::new()),
        });
        let here = self.pings_from_here(&looked);
        let nodes = names.iter().zip(reports).zip(more);
        let node = |((name, report), (model, echoes)): ((&String, _), _)| ExaminedNode {
            name: name.clone(),
            report,
            model,
            echoes,
        };
        (nodes.map(node).collect(), here)
    }

    fn model_of(&self, name: &str) -> Option<Option<Vec<ModelFile>>> {
        let folder = self.model?;
        let files = if self.hashes {
            probe::model_hashes(self.shell, name, folder, HASH_TIMEOUT)
        } else {
            probe::model_files(self.shell, name, folder, SECOND_TIMEOUT)
        };
        files.ok()
    }

    /// Pings the addresses that the hostfile gives the other machines; without a hostfile, their
    /// addresses in the machine's own networks.
    fn pings(
        &self,
        name: &str,
        report: &NodeReport,
        looked: &[(&String, &Result<NodeReport, ShellError>)],
    ) -> Vec<Ping> {
        let others = looked.iter().filter(|(other, _)| *other != name);
        let targets = others.flat_map(|(other, result)| {
            let named = self.named_ips(other);
            let near = |theirs: &NodeReport| -> Vec<IpAddr> {
                let ips = theirs.addrs().map(|(_, addr)| addr.ip).filter(IpAddr::is_ipv4);
                ips.filter(|ip| report.addrs().any(|(_, addr)| addr.reaches(*ip))).collect()
            };
            let ips = match (&named[..], result) {
                ([], Ok(theirs)) => near(theirs),
                _ => named,
            };
            ips.into_iter().map(|ip| ((*other).clone(), ip)).collect::<Vec<_>>()
        });
        self.ping(name, targets.collect())
    }

    /// Pings the machines to which there is no route: macOS may deny a program access to a machine
    /// that `ping` reaches.
    fn pings_from_here(&self, looked: &[(&String, &Result<NodeReport, ShellError>)]) -> Vec<Ping> {
        let lost = looked.iter().filter(|(_, report)| {
            report.as_ref().is_err_and(|err| err.kind == ShellErrorKind::NoRoute)
        });
        let targets = lost.flat_map(|(name, _)| {
            let host = name.rsplit('@').next().unwrap_or(name);
            let own = host.parse::<IpAddr>().ok();
            let ips = self.named_ips(name).into_iter().chain(own);
            ips.map(|ip| ((*name).clone(), ip)).collect::<Vec<_>>()
        });
        self.ping(HERE, targets.collect())
    }

    /// Returns the machine's addresses in the hostfile, except loopback.
    fn named_ips(&self, name: &str) -> Vec<IpAddr> {
        let hosts = self.hostfile.map_or(&[][..], |file| &file.hosts[..]);
        let own = hosts.iter().filter(|host| host.name() == name);
        let mut ips: Vec<IpAddr> =
            own.flat_map(|host| host.ips.iter().copied()).filter(|it| !it.is_loopback()).collect();
        ips.dedup();
        ips
    }

    fn ping(&self, from: &str, targets: Vec<(String, IpAddr)>) -> Vec<Ping> {
        let ips: Vec<IpAddr> = targets.iter().map(|(_, ip)| *ip).collect();
        // If the machine no longer answers, there are no pings: it answered a moment ago, and a
        // second finding about it would not help.
        let echoes = probe::echoes(self.shell, from, &ips, SECOND_TIMEOUT).unwrap_or_default();
        let pings = targets.into_iter().zip(echoes);
        pings.map(|((to, ip), echo)| Ping { to, ip, echo }).collect()
    }
}
