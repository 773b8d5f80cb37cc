//! Runs ranks on several machines, each started by its machine's agent.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jackalope_engine::BrokenLink;
use jackalope_engine::link::{Launch, LaunchOrder, Launcher, RankAssignment, RankProcess};
use jackalope_fleet::agent::{AgentState, Order, OrderedProgram, Program};
use jackalope_fleet::hostfile::Host;
use jackalope_fleet::nodes::{Node, Nodes};
use jackalope_fleet::routes::{self, Encryption, routes};
use jackalope_fleet::stock;
use jackalope_placement::reach::{Candidate, ReachableGroup, groups};
use jackalope_protocol::{Backend, ExpectedContent, Setup};
use tracing::{info, warn};

use super::links::{Answer, Links, PROBE_DEADLINE, Pair, Prober, return_after};
use super::placer::{Cut, CutPlan, rank_name};
use super::tickets::Tickets;
use crate::config::{Beside, PortRange};
use crate::error::DeployError;
use crate::expected_costs::ExpectedCosts;
use crate::models::ModelPlace;

/// First port of stock transports, and number of ports after which they are reused.
const STOCK_PORT: u16 = 32323;
const STOCK_PORTS: u16 = 2048;

/// Distance between the first ports of two models of one server.
const STOCK_PORTS_OF_SLOT: u16 = 256;

/// Time by which an agent's lease on a rank exceeds the rank's own, after which the rank ends by
/// itself.
const LEASE_MARGIN: Duration = Duration::from_secs(10);

/// The machines of a cluster, by hostfile position.
pub(crate) struct Places {
    pub(crate) hosts: Vec<Host>,
    /// Environment variables of every rank.
    pub(crate) envs: Vec<(String, String)>,
    pub(crate) nodes: Arc<Nodes>,
    /// Place from which each node's ranks read the model.
    pub(crate) models: Vec<ModelPlace>,
    /// Number of threads of each rank; by default a machine's cores divided among its ranks.
    pub(crate) threads: Option<u32>,
    /// Set if other models have ranks on these machines.
    pub(crate) beside: Option<Beside>,
    /// Ports for the connections between ranks; each rank takes one of them.
    pub(crate) data_ports: PortRange,
    /// Rule for which connections between ranks are encrypted.
    pub(crate) encryption: Encryption,
    /// Derives the tickets that ranks prove.
    pub(crate) tickets: Tickets,
    /// Memory that caches are expected to take on each rank.
    pub(crate) expected_costs: ExpectedCosts,
}

impl Places {
    /// Returns the machine of a hostfile position.
    fn node(&self, at: usize) -> &Node {
        &self.nodes.nodes[self.nodes.of_rank[at]]
    }

    /// Returns the address by which a machine reaches another one.
    fn route(&self, from: usize, to: usize) -> Option<IpAddr> {
        let node = |node: usize| {
            let at = self.nodes.of_rank.iter().position(|it| *it == node)?;
            Some(routes::RouteNode {
                host: &self.hosts[at],
                facts: Some(&self.nodes.nodes[node].facts),
            })
        };
        Some(routes(&[node(from)?, node(to)?]).ok()?[0][1])
    }
}

impl Prober for Places {
    fn probe(&self, from: usize, to: usize, data: Option<SocketAddr>) -> Option<Answer> {
        let port = self.nodes.nodes[to].agent.addrs().first()?.port();
        let agent = self.route(from, to).map(|ip| SocketAddr::new(ip, port));
        let targets = agent.into_iter().chain(data).collect();
        let probe = self.nodes.nodes[from].agent.probe(targets, PROBE_DEADLINE)?;
        Some(Box::new(move || probe.result()))
    }

    fn name(&self, from: usize, to: usize) -> (String, Option<IpAddr>) {
        (self.nodes.nodes[to].agent.host().to_owned(), self.route(from, to))
    }
}

/// Launcher that starts ranks through agents, and leaves out machines that stay away.
pub(crate) struct AgentLauncher {
    places: Places,
    setup: Setup,
    /// Hostfile positions that compute, by rank.
    seated: Vec<usize>,
    /// Addresses of each rank by which the others reach it.
    data_ips: Vec<Vec<IpAddr>>,
    cut: Cut,
    /// Time after which an absent machine is left out; `None` for never.
    absent_after: Option<Duration>,
    /// For each node: when it became reachable, or reachable again; `None` while it is not.
    back_since: Vec<Option<Instant>>,
    /// For each node: how often it was left out.
    num_absences: Vec<u32>,
    /// For each node: when the coordinator last received something from one of its ranks, over the
    /// rank's own connection.
    last_message_at: Vec<Option<Instant>>,
    links: Links,
    /// Cached result of the last choice among the machines that are present.
    choice: Option<Choice>,
    /// Reason why the last change was not made; logged once.
    refused: Option<String>,
    num_groups: u16,
}

/// The best set of machines, and the inputs of that choice.
struct Choice {
    candidates: Vec<usize>,
    seated: Vec<usize>,
    /// Pairs of candidates without a usable link.
    cut: Vec<(usize, usize)>,
    best: Result<Vec<usize>, String>,
}

impl AgentLauncher {
    /// Assigns ranks to all hosts. Later, a machine that stays away for `absent_after` is left out,
    /// if that time is given.
    ///
    /// # Errors
    /// If two hosts do not reach each other, or the model does not fit.
    pub(crate) fn new(
        places: Places,
        setup: Setup,
        cut: Cut,
        absent_after: Option<Duration>,
    ) -> Result<(AgentLauncher, Vec<RankAssignment>), DeployError> {
        let seated: Vec<usize> = (0..places.hosts.len()).collect();
        let back_since = vec![None; places.nodes.nodes.len()];
        let mut launcher = AgentLauncher {
            places,
            setup,
            seated: Vec::new(),
            data_ips: Vec::new(),
            cut,
            absent_after,
            num_absences: vec![0; back_since.len()],
            last_message_at: vec![None; back_since.len()],
            links: Links::default(),
            choice: None,
            back_since,
            refused: None,
            num_groups: 0,
        };
        let seats = launcher.seats(&seated).map_err(|reason| DeployError::Places { reason })?;
        launcher.seated = seated;
        Ok((launcher, seats))
    }

    /// Returns what the ranks at these hostfile positions load, and how they reach each other.
    fn seats(&mut self, positions: &[usize]) -> Result<Vec<RankAssignment>, String> {
        let CutPlan { split, .. } = (self.cut)(positions)?;
        let nodes = self.route_nodes(positions);
        let routes = routes(&nodes).map_err(|err| err.to_string())?;
        let encrypted = routes::encrypted(&nodes, &routes, self.places.encryption);
        self.stock_settings(positions, 0)?;
        self.data_ips = listened_on(&routes, &nodes);
        let of_rank = &self.places.nodes.of_rank;
        let cache_costs = self.places.expected_costs.of(&split);
        let seat = |rank: usize| {
            let at = positions[rank];
            let beside = positions.iter().filter(|&&it| of_rank[it] == of_rank[at]).count();
            let cores = self.places.node(at).facts.cores / u32::try_from(beside).unwrap_or(1);
            let ModelPlace { dir, source, states, .. } = self.places.models[of_rank[at]].clone();
            let content = self.setup.content.clone();
            let setup = Setup {
                num_ranks: u32::try_from(positions.len()).expect("there are few machines"),
                model_dir: dir,
                model_source: source,
                content: content.map(|content| ExpectedContent { states, ..content }),
                split: split.clone(),
                cache_costs: cache_costs.clone(),
                num_threads: self.places.threads.unwrap_or(cores.max(1)),
                ..self.setup.clone()
            };
            let key = self.places.node(at).agent.key();
            let key = key.expect("a machine that has reported has proved its key");
            let ticket = self.places.tickets.of(rank, &key);
            let (routes, encrypt) = (routes[rank].clone(), encrypted[rank].clone());
            let host = &self.places.hosts[at];
            let is_rdma = setup.backend == Backend::Jaccl;
            let towards = positions.iter().copied().filter(|_| is_rdma);
            let rdma = host.rdma_towards(towards);
            RankAssignment { setup, host: host.name(), routes, encrypt, rdma, ticket }
        };
        Ok((0..positions.len()).map(seat).collect())
    }

    /// Returns the hostfile positions whose machines can be used: those that compute and are
    /// reachable or have not been away for long, and those that have come back for long enough.
    fn present(&mut self, absent_after: Duration) -> Vec<usize> {
        let now = Instant::now();
        let mut back_for = Vec::new();
        let mut away_for = Vec::new();
        let nodes = self.places.nodes.nodes.iter().zip(&self.last_message_at);
        for ((node, last_message_at), back_since) in nodes.zip(&mut self.back_since) {
            let (back, away) = match node.agent.state() {
                AgentState::Up => (Some(*back_since.get_or_insert(now)), None),
                // A machine whose rank is connected is present, even if its agent is silent.
                AgentState::Down { since, .. } => {
                    (None, Some(since.max(last_message_at.unwrap_or(since))))
                }
            };
            *back_since = back;
            back_for.push(back.map(|since| now.duration_since(since)));
            let away = away.map(|since| now.saturating_duration_since(since));
            // A machine whose key was revoked is absent at once, even if its rank is connected.
            let is_distrusted = node.agent.is_distrusted();
            away_for.push(if is_distrusted { Some(absent_after) } else { away });
        }
        let is_used = |at: &usize| {
            let node = self.places.nodes.of_rank[*at];
            if self.seated.contains(at) {
                away_for[node].is_none_or(|away| away < absent_after)
            } else {
                let needed = return_after(self.num_absences[node]);
                back_for[node].is_some_and(|back| needed <= back)
            }
        };
        (0..self.places.hosts.len()).filter(is_used).collect()
    }

    /// Chooses, among the machines that are present, the best set in which all machines reach each
    /// other.
    ///
    /// # Errors
    /// If no such set holds the model.
    fn choose(
        &mut self,
        candidates: Vec<usize>,
        absent_after: Duration,
    ) -> Result<Vec<usize>, String> {
        let (now, of_rank) = (Instant::now(), &self.places.nodes.of_rank);
        let pairs = candidates.iter().enumerate();
        let pairs = pairs.flat_map(|(idx, &a)| candidates[idx + 1..].iter().map(move |&b| (a, b)));
        let is_cut = |&(a, b): &(usize, usize)| {
            let is_used = self.seated.contains(&a) && self.seated.contains(&b);
            let pair = Pair { one: of_rank[a], other: of_rank[b], is_used };
            pair.one != pair.other && !self.links.is_usable(pair, absent_after, now)
        };
        let cut: Vec<(usize, usize)> = pairs.filter(is_cut).collect();
        if cut.is_empty() {
            return Ok(candidates);
        }
        let is_known = |it: &Choice| {
            (&it.candidates, &it.seated, &it.cut) == (&candidates, &self.seated, &cut)
        };
        if let Some(known) = self.choice.as_ref().filter(|it| is_known(it)) {
            return known.best.clone();
        }
        let best = self.best_group(&candidates, &cut);
        let seated = self.seated.clone();
        self.choice = Some(Choice { candidates, seated, cut, best: best.clone() });
        best
    }

    /// Returns the group with the most memory that the model fits into; of equal ones, the one with
    /// the shortest estimated request.
    fn best_group(
        &mut self,
        candidates: &[usize],
        cut: &[(usize, usize)],
    ) -> Result<Vec<usize>, String> {
        let of_rank = &self.places.nodes.of_rank;
        let member = |&position: &usize| {
            let beside = candidates.iter().filter(|&&it| of_rank[it] == of_rank[position]).count();
            let total_bytes = self.places.node(position).facts.total_bytes;
            let usable_bytes = total_bytes / u64::try_from(beside).unwrap_or(1).max(1);
            Candidate { position, usable_bytes, computes: self.seated.contains(&position) }
        };
        let members: Vec<Candidate> = candidates.iter().map(member).collect();
        let groups = groups(&members, |a, b| !cut.contains(&(a.min(b), a.max(b))));
        let mut refusal = None;
        for equals in groups.chunk_by(|a, b| a.usable_bytes == b.usable_bytes) {
            let mut best: Option<(f64, &ReachableGroup)> = None;
            for group in equals {
                match (self.cut)(&group.positions) {
                    Ok(plan) => {
                        let seconds = plan.usual_request_s.unwrap_or(f64::INFINITY);
                        if best.is_none_or(|(least, _)| seconds < least) {
                            best = Some((seconds, group));
                        }
                    }
                    Err(reason) => refusal = refusal.or(Some(reason)),
                }
            }
            if let Some((_, group)) = best {
                return Ok(group.positions.clone());
            }
        }
        Err(refusal.unwrap_or_else(|| "no machine can be reached".to_owned()))
    }

    /// Returns the nodes that have ranks now.
    fn computing(&self) -> Vec<usize> {
        self.seated.iter().map(|&at| self.places.nodes.of_rank[at]).collect()
    }

    /// Logs why the ranks are not moved, once for each reason.
    fn refuse(&mut self, reason: String) {
        if self.refused.as_ref() != Some(&reason) {
            warn!(reason, "the reachable machines cannot hold the model alone");
            self.refused = Some(reason);
        }
    }

    fn order(&mut self, order: &LaunchOrder) -> Order {
        let at = self.seated[order.rank];
        let control = SocketAddr::new(self.our_ip(at), order.control_addr.port());
        let words = ["serve", "--control", &control.to_string(), "--rank", &order.rank.to_string()];
        let mut args: Vec<String> = words.map(str::to_owned).to_vec();
        let data: Vec<String> = self.data_ips[order.rank].iter().map(IpAddr::to_string).collect();
        let ports = self.places.data_ports.to_string();
        args.extend(["--data".to_owned(), data.join(","), "--data-ports".to_owned(), ports]);
        let lease = Duration::from_millis(self.setup.orphan_ms);
        let lease = if lease.is_zero() { lease } else { lease + LEASE_MARGIN };
        if order.rank == 0 {
            self.num_groups = self.num_groups.wrapping_add(1);
        }
        let settings = self.stock_settings(&self.seated, order.rank);
        let settings = settings.expect("assigned machines have what the transport needs");
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
            ticket: Some(order.ticket),
        }
    }

    /// Returns the machines at these hostfile positions as route endpoints.
    fn route_nodes(&self, positions: &[usize]) -> Vec<routes::RouteNode<'_>> {
        let node = |&at: &usize| {
            let facts = Some(&self.places.node(at).facts);
            routes::RouteNode { host: &self.places.hosts[at], facts }
        };
        positions.iter().map(node).collect()
    }

    /// Returns the settings that MLX's own transport needs, with ports that the last group did not
    /// use.
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
        let hosts = routes::with_addresses(&self.route_nodes(positions));
        let hosts = hosts.map_err(|err| err.to_string())?.into_iter().zip(positions);
        let hosts = hosts.map(|(host, &at)| Host { rdma: devices(at), ..host });
        let hosts: Vec<Host> = hosts.collect();
        let num_ports = u16::try_from(hosts.len()).unwrap_or(u16::MAX);
        let slot = self.places.beside.as_ref().map_or(0, |it| it.slot);
        let used = self.num_groups.wrapping_mul(num_ports);
        let first_port =
            STOCK_PORT + used.wrapping_add(slot.wrapping_mul(STOCK_PORTS_OF_SLOT)) % STOCK_PORTS;
        let settings = stock::settings(self.setup.backend, &hosts, first_port, rank);
        settings.map_err(|err| format!("{err}\nhint: {}", err.hint()))
    }

    /// Returns this machine's address as a host's machine sees it, or saw it last.
    fn our_ip(&self, at: usize) -> IpAddr {
        self.places.node(at).agent.our_ip().unwrap_or(Ipv4Addr::LOCALHOST.into())
    }
}

impl Launcher for AgentLauncher {
    fn reassign(&mut self) -> Option<Vec<RankAssignment>> {
        let absent_after = self.absent_after?;
        let present = self.present(absent_after);
        let chosen = self.choose(present, absent_after);
        let chosen = chosen.map_err(|reason| self.refuse(reason)).ok()?;
        if chosen == self.seated || chosen.is_empty() {
            self.refused = None;
            return None;
        }
        let seats = self.seats(&chosen).map_err(|reason| self.refuse(reason)).ok()?;
        let names: Vec<String> = chosen.iter().map(|&at| self.places.hosts[at].name()).collect();
        info!(hosts = names.join(","), "planning again for the machines that reach each other");
        let num_nodes = self.places.nodes.nodes.len();
        for at in self.seated.iter().filter(|at| !chosen.contains(at)) {
            let node = self.places.nodes.of_rank[*at];
            self.num_absences[node] += 1;
            self.links.leave_out(node, num_nodes);
        }
        (self.seated, self.refused) = (chosen, None);
        Some(seats)
    }

    fn note_message(&mut self, rank: usize, at: Instant) {
        let last_message_at =
            &mut self.last_message_at[self.places.nodes.of_rank[self.seated[rank]]];
        *last_message_at = (*last_message_at).max(Some(at));
    }

    fn suspect_links(&mut self, addrs: &[Vec<SocketAddr>]) {
        let computing = self.computing();
        for one in 0..computing.len() {
            for other in (0..one).filter(|&other| computing[other] != computing[one]) {
                let data = [addrs[one].get(other).copied(), addrs[other].get(one).copied()];
                self.links.suspect(computing[one], computing[other], data);
            }
        }
    }

    fn link_failed(&mut self, from: usize, to: usize) {
        let computing = self.computing();
        if computing[from] != computing[to] {
            self.links.join_failed(computing[from], computing[to], Instant::now());
        }
    }

    fn broken_link(&mut self, now: Instant) -> Option<String> {
        let computing = self.computing();
        let computes = |node: usize| computing.contains(&node);
        self.links.watch(now, computes, &self.places);
        self.links.broken(now, computes, &self.places)
    }

    fn broken_links(&self) -> Vec<BrokenLink> {
        self.links.all_broken(&self.places)
    }

    fn is_watching_links(&self) -> bool {
        self.links.is_watching()
    }

    fn is_elastic(&self) -> bool {
        self.absent_after.is_some()
    }

    fn refresh(&mut self, rank: usize, setup: &Setup) -> Setup {
        let mut setup = setup.clone();
        let place = &self.places.models[self.places.nodes.of_rank[self.seated[rank]]];
        if let (Some(source), Some(granter)) = (&mut setup.model_source, &place.granter) {
            source.grant = granter.grant();
        }
        setup
    }

    fn hand_over(&mut self) {
        self.places.nodes.nodes.iter().for_each(|node| node.agent.abandon());
    }

    fn launch(&mut self, order: &LaunchOrder) -> Launch {
        let program = self.order(order);
        let node = self.places.node(self.seated[order.rank]);
        let process = AgentProcess(node.agent.start(program));
        Box::new(move || Ok(Box::new(process)))
    }
}

/// Returns the addresses on which each rank listens, which are those by which the others reach it.
/// If its machine lacks one of them (another device translates it), the rank listens on all
/// addresses of its machine.
fn listened_on(routes: &[Vec<IpAddr>], nodes: &[routes::RouteNode<'_>]) -> Vec<Vec<IpAddr>> {
    let of_rank = |(rank, node): (usize, &routes::RouteNode<'_>)| {
        let others = routes.iter().enumerate().filter(|(from, _)| *from != rank);
        let mut ips: BTreeSet<IpAddr> = others.map(|(_, row)| row[rank]).collect();
        let interfaces = node.facts.into_iter().flat_map(|facts| &facts.interfaces);
        let own: Vec<IpAddr> = interfaces
            .flat_map(|it| &it.addrs)
            .map(|it| it.ip)
            .filter(|ip| is_usable(*ip))
            .collect();
        let foreign = ips.iter().find(|ip| !ip.is_loopback() && !own.contains(ip)).copied();
        if let (Some(ip), false) = (foreign, own.is_empty()) {
            let host = node.host.name();
            warn!(host, %ip, "the machine lacks this address; its rank listens on the others");
            ips.extend(own);
            ips.remove(&ip);
        }
        if ips.is_empty() {
            ips.insert(Ipv4Addr::LOCALHOST.into());
        }
        ips.into_iter().collect()
    };
    nodes.iter().enumerate().map(of_rank).collect()
}

/// Whether other machines can use this address: IPv6 link-local ones are meaningless without an
/// interface.
fn is_usable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
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

    fn distrust(&self) -> Option<String> {
        self.0.distrust()
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
    fn a_rank_listens_where_the_others_reach_it_and_nowhere_else() {
        use jackalope_protocol::machine::{Interface, InterfaceAddr, NodeFacts};
        let facts = |ips: &[&str]| {
            let addr = |ip: &&str| InterfaceAddr { ip: ip.parse().unwrap(), prefix_len: 24 };
            let addrs = ips.iter().map(addr).collect();
            let interfaces = vec![Interface { addrs, ..Interface::default() }];
            NodeFacts { interfaces, ..NodeFacts::default() }
        };
        let facts = [
            facts(&["127.0.0.1", "10.0.0.1", "10.9.0.1", "192.168.7.1"]),
            facts(&["127.0.0.1", "10.0.0.2", "fd00::2", "fe80::2"]),
            // The other machines know it as 198.51.100.3.
            facts(&["127.0.0.1", "172.16.0.3"]),
        ];
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let routes = [
            [ip("127.0.0.1"), ip("10.0.0.2"), ip("198.51.100.3")],
            [ip("10.0.0.1"), ip("127.0.0.1"), ip("198.51.100.3")],
            [ip("10.9.0.1"), ip("fd00::2"), ip("127.0.0.1")],
        ]
        .map(Vec::from);
        let host = Host::default();
        let node = |facts| routes::RouteNode { host: &host, facts: Some(facts) };
        let nodes: Vec<_> = facts.iter().map(node).collect();
        let wanted = [
            vec![ip("10.0.0.1"), ip("10.9.0.1")],
            vec![ip("10.0.0.2"), ip("fd00::2")],
            vec![ip("127.0.0.1"), ip("172.16.0.3")],
        ];
        assert_eq!(listened_on(&routes, &nodes), wanted);
        assert_eq!(listened_on(&routes[..1], &nodes[..1]), [vec![ip("127.0.0.1")]], "it is alone");
    }
}
