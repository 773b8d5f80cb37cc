//! The ranks of a measurement: child processes, or programs that agents run.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, ensure};
use jackalope_deploy::machines;
use jackalope_fleet::agent::{OnLine, Order, OrderedProgram, Program, Stream};
use jackalope_fleet::hostfile::Host;
use jackalope_fleet::local::{LocalError, LocalRanks, find_rank_program};
use jackalope_fleet::nodes::{Node, Nodes};
use jackalope_fleet::process::{Child, describe};
use jackalope_fleet::routes::{self, routes};
use jackalope_fleet::shell::Shell;
use jackalope_fleet::stock::{self, RankSettings};
use jackalope_inspect::autoconfig::{Cabling, ReportedMachine};
use jackalope_inspect::probe;
use jackalope_inspect::report::ThunderboltGeneration;
use jackalope_protocol::{Backend, Secret};
use serde_json::Value;
use tokio::sync::mpsc::Sender;

use crate::args::{EncryptArg, LinkArgs};
use crate::environment::Environment;

/// First port of stock transports; a server that runs at the same time uses others.
const STOCK_PORT: u16 = 31323;

/// Timeout for the report on one machine's ports.
const REPORT_TIMEOUT: Duration = Duration::from_secs(20);

/// Usable stock transports, each with its settings for the environment by rank.
type Usable = Vec<(Backend, Vec<RankSettings>)>;

/// Stock transports for which the hostfile lacks something, each with the reason.
type Refused = Vec<(Backend, String)>;

/// Operations on the ranks of a measurement, wherever they run.
pub(super) trait Ranks {
    fn len(&self) -> usize;

    /// Returns the machines by rank; empty if all ranks are on this machine.
    fn hosts(&self) -> Vec<String>;

    /// Returns the name of a rank for messages.
    fn name(&self, rank: usize) -> String;

    /// Sends the listening addresses of all ranks to every rank.
    fn send_addrs(&mut self, addrs: &[String]) -> anyhow::Result<()>;

    /// Returns how a rank ended, with its last output; `None` while it runs.
    fn ended(&mut self, rank: usize) -> Option<String>;

    /// Returns why the state of a rank is unknown; `None` if it is known.
    fn trouble(&self, rank: usize) -> Option<String>;

    /// Returns the slowest generation of the cables between the machines, if there are any.
    fn cables(&self) -> Option<ThunderboltGeneration> {
        None
    }
}

/// Ranks on this machine.
pub(super) struct OwnRanks {
    children: Vec<Child>,
    /// Keeps the settings of stock groups alive.
    _local: LocalRanks,
}

impl OwnRanks {
    pub(super) fn start(
        args: &LinkArgs,
        backends: &[Backend],
        rows: &Sender<(usize, Value)>,
    ) -> anyhow::Result<OwnRanks> {
        let secret = Secret::random().context("generating the group's secret")?;
        // Only the ring's settings have to be created; they do not affect the other transports.
        let settings = if backends.contains(&Backend::Ring) { Backend::Ring } else { Backend::Tcp };
        let num_ranks = args.ranks as usize;
        let mut local = LocalRanks::new(&find_rank_program()?, settings, num_ranks);
        let words = words(args, backends);
        let children: Result<Vec<Child>, LocalError> =
            (0..num_ranks).map(|rank| local.start_link(rank, &words, &secret)).collect();
        let mut children = children?;
        for (rank, child) in children.iter_mut().enumerate() {
            let stdout = child.take_stdout().context("a rank's output is read once")?;
            let rows = rows.clone();
            // This thread ends when the rank does.
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines() {
                    let Ok(line) = line else { return };
                    forward(rank, &line, &rows);
                }
            });
        }
        Ok(OwnRanks { children, _local: local })
    }
}

impl Ranks for OwnRanks {
    fn len(&self) -> usize {
        self.children.len()
    }

    fn hosts(&self) -> Vec<String> {
        Vec::new()
    }

    fn name(&self, rank: usize) -> String {
        format!("rank {rank}")
    }

    fn send_addrs(&mut self, addrs: &[String]) -> anyhow::Result<()> {
        let line = format!("{}\n", addrs.join(","));
        for child in &mut self.children {
            child.send_input(line.as_bytes()).context("sending the addresses to a rank")?;
        }
        Ok(())
    }

    fn ended(&mut self, rank: usize) -> Option<String> {
        let child = &mut self.children[rank];
        let end = describe(child.try_wait()?);
        Some(format!("{end}: {}", child.last_words()))
    }

    fn trouble(&self, _: usize) -> Option<String> {
        None
    }
}

/// Ranks that agents started.
pub(super) struct AgentRanks {
    programs: Vec<Program>,
    hosts: Vec<Host>,
    /// `routes[i][j]` is the address by which rank i reaches rank j.
    routes: Vec<Vec<IpAddr>>,
    cables: Option<ThunderboltGeneration>,
    /// Keeps the programs alive.
    _nodes: Nodes,
}

impl AgentRanks {
    /// Starts the ranks. Also returns the transports for which the hostfile lacks something.
    pub(super) async fn start(
        hosts: &str,
        environment: &Environment,
        args: &LinkArgs,
        backends: &[Backend],
        rows: Sender<(usize, Value)>,
    ) -> anyhow::Result<(AgentRanks, Refused)> {
        let reach = &args.reach;
        let file = machines::hostfile(hosts)?;
        let hosts = file.hosts;
        ensure!(1 < hosts.len(), "one machine has no link\nhint: name at least two machines");
        let config = machines::nodes_config(&reach.config(environment), &environment.local)?;
        let nodes =
            machines::bring_up(hosts.clone(), config, &environment.local.observer, reader(rows))
                .await?;
        let node = |(rank, host): (usize, _)| {
            let facts = Some(&nodes.nodes[nodes.of_rank[rank]].facts);
            routes::RouteNode { host, facts }
        };
        let routes = routes(&hosts.iter().enumerate().map(node).collect::<Vec<_>>())?;
        let listen = |to: usize| {
            let others = routes.iter().enumerate().filter(|(from, _)| *from != to);
            let ips: BTreeSet<IpAddr> = others.map(|(_, row)| row[to]).collect();
            ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",")
        };
        let listen: Vec<String> = (0..hosts.len()).map(listen).collect();
        let (usable, refused) = settings(backends, &hosts);
        let names: Vec<Backend> = usable.iter().map(|(backend, _)| *backend).collect();
        let words = words(args, &names);
        let secret = Secret::random().context("generating the group's secret")?;
        let program = |rank: usize| {
            let mut order = Order {
                name: format!("link {} rank {rank}", std::process::id()),
                program: OrderedProgram::Rank,
                args: ["link", "--data", &listen[rank], "--rank"].map(str::to_owned).to_vec(),
                env: file.envs.clone(),
                files: Vec::new(),
                cwd: None,
                lease_ms: 0,
                // The group's secret, which all its ranks prove to each other.
                ticket: Some(secret),
            };
            order.args.push(rank.to_string());
            order.args.extend(words.iter().cloned());
            for (_, of_rank) in &usable {
                order.env.extend(of_rank[rank].env.iter().cloned());
                order.files.extend(of_rank[rank].files.iter().cloned());
            }
            nodes.nodes[nodes.of_rank[rank]].agent.start(order)
        };
        let programs = (0..hosts.len()).map(program).collect();
        let is_mac = |node: &Node| node.facts.os.starts_with("macOS");
        let cables = match nodes.nodes.iter().any(is_mac) {
            true => {
                let names = hosts.iter().map(|it| it.ssh.clone()).filter(|it| !it.is_empty());
                let names: Vec<String> = names.collect();
                let shell = environment.shell(reach.ssh.as_deref());
                tokio::task::spawn_blocking(move || slowest_cable(&shell, &names)).await?
            }
            false => None,
        };
        Ok((AgentRanks { programs, hosts, routes, cables, _nodes: nodes }, refused))
    }
}

/// Returns the slowest generation of the cables between the machines. Machines that do not answer
/// count as having no cables.
fn slowest_cable(shell: &dyn Shell, hosts: &[String]) -> Option<ThunderboltGeneration> {
    let reports = probe::reports(shell, hosts, REPORT_TIMEOUT);
    let members: Vec<ReportedMachine<'_>> = hosts
        .iter()
        .zip(&reports)
        .filter_map(|(name, report)| Some(ReportedMachine { name, report: report.as_ref().ok()? }))
        .collect();
    let cables = Cabling::of(&members).cables;
    cables.iter().filter_map(|it| it.bits_per_s).map(ThunderboltGeneration::of_speed).min()
}

impl Ranks for AgentRanks {
    fn len(&self) -> usize {
        self.programs.len()
    }

    fn hosts(&self) -> Vec<String> {
        self.hosts.iter().map(Host::name).collect()
    }

    fn name(&self, rank: usize) -> String {
        format!("rank {rank} on {}", self.hosts[rank].name())
    }

    fn send_addrs(&mut self, addrs: &[String]) -> anyhow::Result<()> {
        let listening: Result<Vec<SocketAddr>, _> = addrs.iter().map(|it| it.parse()).collect();
        let listening = listening.context("reading where a rank listens")?;
        for (program, ips) in self.programs.iter().zip(&self.routes) {
            let addr = |(ip, at): (&IpAddr, &SocketAddr)| SocketAddr::new(*ip, at.port());
            let addrs = ips.iter().zip(&listening).map(|it| addr(it).to_string());
            let line = format!("{}\n", addrs.collect::<Vec<_>>().join(","));
            program.input(line.into_bytes());
        }
        Ok(())
    }

    fn ended(&mut self, rank: usize) -> Option<String> {
        let ended = self.programs[rank].ended()?;
        Some(format!("{}: {}", ended.exit, ended.last_words))
    }

    fn trouble(&self, rank: usize) -> Option<String> {
        // An agent that lost the connection has ended the rank, which has no lease.
        let trouble = self.programs[rank].trouble()?;
        Some(format!("cannot be reached: {trouble}"))
    }

    fn cables(&self) -> Option<ThunderboltGeneration> {
        self.cables
    }
}

/// Returns a handler that extracts rows from the output that agents forward.
fn reader(rows: Sender<(usize, Value)>) -> impl Fn(&str) -> OnLine + Send + Sync + 'static {
    move |_host: &str| {
        let rows = rows.clone();
        Box::new(move |name: &str, stream: Stream, text: &str| {
            let rank = name.rsplit(' ').next().and_then(|it| it.parse().ok());
            if let (Some(rank), Stream::Out) = (rank, stream) {
                forward(rank, text, &rows);
            }
        })
    }
}

fn forward(rank: usize, line: &str, rows: &Sender<(usize, Value)>) {
    if let Ok(row) = serde_json::from_str(line) {
        // The receiver may be gone once it has seen enough.
        rows.blocking_send((rank, row)).ok();
    }
}

fn settings(backends: &[Backend], hosts: &[Host]) -> (Usable, Refused) {
    let (mut usable, mut refused) = (Vec::new(), Vec::new());
    let num_ports = u16::try_from(hosts.len()).unwrap_or(u16::MAX);
    let mut first_port = STOCK_PORT;
    for &backend in backends {
        let of_rank = |rank| stock::settings(backend, hosts, first_port, rank);
        match (0..hosts.len()).map(of_rank).collect() {
            Ok(settings) => usable.push((backend, settings)),
            Err(err) => refused.push((backend, format!("{err}\nhint: {}", err.hint()))),
        }
        first_port = first_port.saturating_add(num_ports);
    }
    (usable, refused)
}

fn words(args: &LinkArgs, backends: &[Backend]) -> Vec<String> {
    let sizes: Vec<String> = args.sizes.iter().map(u64::to_string).collect();
    let names: Vec<&str> = backends.iter().map(|backend| backend.name()).collect();
    let mut words = vec![format!("--sizes={}", sizes.join(","))];
    words.push(format!("--budget-ms={}", args.budget_ms));
    words.push(format!("--data-ports={}", args.data_ports));
    words.extend(args.rounds.map(|rounds| format!("--rounds={rounds}")));
    words.extend(args.every_round.then(|| "--every-round".to_owned()));
    if !names.is_empty() {
        words.push(format!("--backends={}", names.join(",")));
    }
    if args.checksums {
        words.push("--checksums".to_owned());
    }
    match args.encrypt_data {
        EncryptArg::Auto => words.push("--compare-encrypted".to_owned()),
        EncryptArg::On => words.push("--encrypt".to_owned()),
        EncryptArg::Off => {}
    }
    words
}
