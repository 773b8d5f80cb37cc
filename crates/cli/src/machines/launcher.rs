//! Ranks on several machines, each started by its machine's agent.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use jackalope_cluster::agent::{AgentState, Order, OrderedProgram, Program};
use jackalope_cluster::hostfile::Host;
use jackalope_cluster::nodes::{Node, Nodes};
use jackalope_cluster::routes::{self, routes};
use jackalope_cluster::stock;
use jackalope_engine::link::{LaunchError, LaunchOrder, Launcher, RankProcess, Seat};
use jackalope_protocol::Setup;
use jackalope_protocol::split::Split;
use tracing::{info, warn};

use super::placer::rank_name;
use crate::cluster::Beside;
use crate::models::Place;

/// The data plane accepts on every address; who is no rank of this cluster is refused there.
const DATA_ADDR: &str = "0.0.0.0:0";

/// First port of stock transports, and how many are used before they are used again.
const STOCK_PORT: u16 = 32323;
const STOCK_PORTS: u16 = 2048;

/// Models of one server begin so far apart.
const STOCK_PORTS_OF_SLOT: u16 = 256;

/// An agent waits so much longer than its ranks, which end by themselves.
const LEASE_MARGIN: Duration = Duration::from_secs(10);

/// A machine that has come back has to stay so long before it is used again; twice as long each time,
/// because taking it back means loading anew …
const RETURN_AFTER: Duration = Duration::from_secs(2);
/// … up to this.
const RETURN_AFTER_MAX: Duration = Duration::from_secs(300);

/// How long a machine that was done without so many times has to stay.
fn return_after(num_absences: u32) -> Duration {
    let doublings = num_absences.saturating_sub(1).min(16);
    (RETURN_AFTER * (1 << doublings)).min(RETURN_AFTER_MAX)
}

/// Decides what each of several machines loads: hostfile positions in, a split out, or why it cannot
/// be done.
pub(crate) type Cut = Box<dyn FnMut(&[usize]) -> Result<Split, String> + Send>;

/// The machines of a cluster, by hostfile position.
pub(crate) struct Places {
    pub(crate) hosts: Vec<Host>,
    /// Set for every rank.
    pub(crate) envs: Vec<(String, String)>,
    pub(crate) nodes: Arc<Nodes>,
    /// Where each node's ranks read the model.
    pub(crate) models: Vec<Place>,
    /// Threads of each rank; a machine's cores, divided among its ranks, if absent.
    pub(crate) threads: Option<u32>,
    /// Set if other models have ranks there as well.
    pub(crate) beside: Option<Beside>,
}

impl Places {
    /// The machine of a hostfile position.
    fn node(&self, at: usize) -> &Node {
        &self.nodes.nodes[self.nodes.of_rank[at]]
    }
}

/// Starts ranks through agents, and leaves out machines that stay away.
pub(crate) struct AgentLauncher {
    places: Places,
    setup: Setup,
    /// Which hostfile positions compute, by rank.
    seated: Vec<usize>,
    cut: Cut,
    /// After how long a machine is done without; never if absent.
    absent_after: Option<Duration>,
    /// By node: since when it has been there again.
    back_since: Vec<Option<Instant>>,
    /// By node: how often it was done without.
    num_absences: Vec<u32>,
    /// Why the last change was not made; told once.
    refused: Option<String>,
    num_groups: u16,
}

impl AgentLauncher {
    /// Ranks on all hosts, to begin with. A machine that stays away for `absent_after` is done
    /// without, if there is such a time.
    ///
    /// # Errors
    /// If two of them do not reach each other, or the model does not fit.
    pub(crate) fn new(
        places: Places,
        setup: Setup,
        cut: Cut,
        absent_after: Option<Duration>,
    ) -> anyhow::Result<(AgentLauncher, Vec<Seat>)> {
        let seated: Vec<usize> = (0..places.hosts.len()).collect();
        let back_since = vec![None; places.nodes.nodes.len()];
        let mut launcher = AgentLauncher {
            places,
            setup,
            seated: Vec::new(),
            cut,
            absent_after,
            num_absences: vec![0; back_since.len()],
            back_since,
            refused: None,
            num_groups: 0,
        };
        let seats = launcher.seats(&seated).map_err(anyhow::Error::msg).context("placing ranks")?;
        launcher.seated = seated;
        Ok((launcher, seats))
    }

    /// What ranks at these hostfile positions load, and how they reach each other.
    fn seats(&mut self, positions: &[usize]) -> Result<Vec<Seat>, String> {
        let split = (self.cut)(positions)?;
        let node = |&at: &usize| {
            let facts = Some(&self.places.node(at).facts);
            routes::Node { host: &self.places.hosts[at], facts }
        };
        let nodes: Vec<routes::Node<'_>> = positions.iter().map(node).collect();
        let routes = routes(&nodes).map_err(|err| err.to_string())?;
        self.stock_settings(positions, 0)?;
        let of_rank = &self.places.nodes.of_rank;
        let seat = |(&at, routes): (&usize, Vec<IpAddr>)| {
            let beside = positions.iter().filter(|&&it| of_rank[it] == of_rank[at]).count();
            let cores = self.places.node(at).facts.cores / u32::try_from(beside).unwrap_or(1);
            let Place { dir, source } = self.places.models[of_rank[at]].clone();
            let setup = Setup {
                num_ranks: u32::try_from(positions.len()).expect("there are few machines"),
                model_dir: dir,
                model_source: source,
                split: split.clone(),
                num_threads: self.places.threads.unwrap_or(cores.max(1)),
                ..self.setup.clone()
            };
            Seat { setup, host: self.places.hosts[at].name(), routes }
        };
        Ok(positions.iter().zip(routes).map(seat).collect())
    }

    /// Hostfile positions whose machines are to be used: those that compute and are there, or have
    /// not been away for long, and those that have come back to stay.
    fn present(&mut self, absent_after: Duration) -> Vec<usize> {
        let now = Instant::now();
        let mut back_for = Vec::new();
        let mut away_for = Vec::new();
        for (node, back_since) in self.places.nodes.nodes.iter().zip(&mut self.back_since) {
            let (back, away) = match node.agent.state() {
                AgentState::Up => (Some(*back_since.get_or_insert(now)), None),
                AgentState::Down { since, .. } => (None, Some(since)),
            };
            *back_since = back;
            back_for.push(back.map(|since| now.duration_since(since)));
            away_for.push(away.map(|since| now.duration_since(since)));
        }
        let is_used = |at: &usize| {
            let node = self.places.nodes.of_rank[*at];
            match self.seated.contains(at) {
                true => away_for[node].is_none_or(|away| away < absent_after),
                false => {
                    let needed = return_after(self.num_absences[node]);
                    back_for[node].is_some_and(|back| needed <= back)
                }
            }
        };
        (0..self.places.hosts.len()).filter(is_used).collect()
    }

    fn order(&mut self, order: &LaunchOrder) -> Order {
        let at = self.seated[order.rank];
        let control = SocketAddr::new(self.our_ip(at), order.control_addr.port());
        let words = ["serve", "--control", &control.to_string(), "--rank", &order.rank.to_string()];
        let mut args: Vec<String> = words.map(str::to_owned).to_vec();
        args.extend(["--data", DATA_ADDR].map(str::to_owned));
        let lease = Duration::from_millis(self.setup.orphan_ms);
        let lease = if lease.is_zero() { lease } else { lease + LEASE_MARGIN };
        if order.rank == 0 {
            self.num_groups = self.num_groups.wrapping_add(1);
        }
        let settings = self.stock_settings(&self.seated, order.rank);
        let settings = settings.expect("whoever was seated had what the transport needs");
        Order {
            name: match &self.places.beside {
                Some(beside) => rank_name(order.rank, &beside.name),
                None => format!("rank {}", order.rank),
            },
            program: OrderedProgram::Rank,
            args,
            env: self.places.envs.iter().cloned().chain(settings.env).collect(),
            files: settings.files,
            cwd: None,
            lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// What MLX's own transport wants to find, on ports that the last group did not use.
    fn stock_settings(
        &self,
        positions: &[usize],
        rank: usize,
    ) -> Result<stock::RankSettings, String> {
        if !self.setup.backend.is_stock() {
            return Ok(stock::RankSettings::default());
        }
        let devices = |at: usize| {
            let rdma = &self.places.hosts[at].rdma;
            let towards = positions.iter().map(|&to| rdma.get(to).cloned().unwrap_or_default());
            if rdma.is_empty() { Vec::new() } else { towards.collect() }
        };
        let hosts =
            positions.iter().map(|&at| Host { rdma: devices(at), ..self.places.hosts[at].clone() });
        let hosts: Vec<Host> = hosts.collect();
        let num_ports = u16::try_from(hosts.len()).unwrap_or(u16::MAX);
        let slot = self.places.beside.as_ref().map_or(0, |it| it.slot);
        let used = self.num_groups.wrapping_mul(num_ports);
        let first_port =
            STOCK_PORT + used.wrapping_add(slot.wrapping_mul(STOCK_PORTS_OF_SLOT)) % STOCK_PORTS;
        let settings = stock::settings(self.setup.backend, &hosts, first_port, rank);
        settings.map_err(|err| format!("{err}\nhint: {}", err.hint()))
    }

    /// Our address as a host's machine sees it, or saw it last.
    fn our_ip(&self, at: usize) -> IpAddr {
        self.places.node(at).agent.our_ip().unwrap_or(Ipv4Addr::LOCALHOST.into())
    }
}

impl Launcher for AgentLauncher {
    fn reseat(&mut self) -> Option<Vec<Seat>> {
        let present = self.present(self.absent_after?);
        if present == self.seated || present.is_empty() {
            self.refused = None;
            return None;
        }
        match self.seats(&present) {
            Ok(seats) => {
                let names: Vec<String> =
                    present.iter().map(|&at| self.places.hosts[at].name()).collect();
                info!(hosts = names.join(","), "planning anew for the machines that are there");
                for at in self.seated.iter().filter(|at| !present.contains(at)) {
                    self.num_absences[self.places.nodes.of_rank[*at]] += 1;
                }
                (self.seated, self.refused) = (present, None);
                Some(seats)
            }
            Err(reason) => {
                if self.refused.as_ref() != Some(&reason) {
                    warn!(reason, "the machines that are there cannot do without the others");
                    self.refused = Some(reason);
                }
                None
            }
        }
    }

    fn is_elastic(&self) -> bool {
        self.absent_after.is_some()
    }

    fn hand_over(&mut self) {
        self.places.nodes.nodes.iter().for_each(|node| node.agent.abandon());
    }

    fn launch(&mut self, order: &LaunchOrder) -> Result<Box<dyn RankProcess>, LaunchError> {
        let program = self.order(order);
        let node = self.places.node(self.seated[order.rank]);
        Ok(Box::new(AgentProcess(node.agent.start(program))))
    }
}

struct AgentProcess(Program);

impl RankProcess for AgentProcess {
    fn pid(&self) -> Option<u32> {
        self.0.pid()
    }

    fn trouble(&self) -> Option<String> {
        self.0.trouble()
    }

    fn try_wait(&mut self) -> Option<String> {
        self.0.ended().map(|ended| ended.exit)
    }

    fn kill(&mut self) {
        self.0.kill();
    }

    fn last_words(&self) -> String {
        self.0.ended().map(|ended| ended.last_words).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_leaves_again_and_again_is_trusted_later_each_time() {
        let seconds = |num_absences| return_after(num_absences).as_secs();
        assert_eq!([0, 1, 2, 3, 8].map(seconds), [2, 2, 4, 8, 256]);
        assert_eq!([9, 40, u32::MAX].map(seconds), [300, 300, 300]);
    }
}
