//! Diagnoses the machines of a running server, like `jackalope doctor`.

use std::sync::{Arc, Mutex, TryLockError};

use jackalope_fleet::shell::SystemShell;
use jackalope_inspect::doctor::{self, Ask, Examination, Severity};
use jackalope_server::{ClusterDoctor, Diagnosis};
use serde_json::{Value, json};
use thiserror::Error;

use crate::config::HostsConfig;
use crate::error::HostsError;
use crate::machines;

/// Name of this machine, which is examined if there is no hostfile.
const HERE: &str = "127.0.0.1";

/// Why machines are not examined.
#[derive(Debug, Error)]
enum DiagnosisError {
    /// Another diagnosis runs.
    #[error("the machines are being examined already\nhint: try again in 20 seconds")]
    Busy,
    /// The hostfile cannot be used.
    #[error(transparent)]
    Hosts(#[from] HostsError),
}

/// Examines the machines of a hostfile, or this machine.
#[derive(Clone, Debug)]
pub(crate) struct HostsDoctor {
    /// A hostfile, or names separated by commas.
    hosts: Option<String>,
    ssh: Vec<String>,
    /// Held during a diagnosis: there is one at a time.
    examining: Arc<Mutex<()>>,
}

impl HostsDoctor {
    pub(crate) fn new(hosts: &HostsConfig) -> HostsDoctor {
        let (hosts, ssh) = (hosts.hosts.clone(), hosts.reach.ssh.clone());
        HostsDoctor { hosts, ssh, examining: Arc::default() }
    }

    fn examine(&self, broken_links: &[String]) -> Result<Value, DiagnosisError> {
        let examining = self.examining.try_lock();
        if matches!(examining, Err(TryLockError::WouldBlock)) {
            return Err(DiagnosisError::Busy);
        }
        let hostfile = self.hosts.as_deref().map(machines::hostfile).transpose()?;
        let names = hostfile.as_ref().map_or_else(|| vec![HERE.to_owned()], doctor::names);
        let shell = SystemShell::new(self.ssh.clone());
        let hostfile = hostfile.as_ref();
        let (nodes, here) =
            Ask { shell: &shell, hostfile, model: None, hashes: false }.look(&names);
        let findings = doctor::examine(&Examination {
            hostfile,
            nodes: &nodes,
            model: None,
            here: &here,
            broken_links,
        });
        let count = |severity| findings.iter().filter(|it| it.severity == severity).count();
        let node = |node: &doctor::ExaminedNode| match &node.report {
            Ok(report) => json!({"name": node.name, "report": report}),
            Err(err) => json!({"name": node.name, "error": err.to_string()}),
        };
        Ok(json!({
            "ok": count(Severity::Error) == 0,
            "errors": count(Severity::Error),
            "warnings": count(Severity::Warn),
            "findings": findings,
            "nodes": nodes.iter().map(node).collect::<Vec<Value>>(),
        }))
    }
}

impl ClusterDoctor for HostsDoctor {
    fn diagnose(&self, broken_links: Vec<String>) -> Diagnosis {
        let doctor = self.clone();
        let work = tokio::task::spawn_blocking(move || doctor.examine(&broken_links));
        Box::pin(async move {
            let failed = |reason: String| json!({"ok": false, "error": reason});
            match work.await {
                Ok(Ok(found)) => found,
                Ok(Err(err)) => failed(crate::error::text(&err)),
                Err(err) => failed(err.to_string()),
            }
        })
    }
}
