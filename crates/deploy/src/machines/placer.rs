//! Decides how much of a model each machine gets.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jackalope_fleet::agent::ProgramStatus;
use jackalope_fleet::hostfile::Host;
use jackalope_fleet::nodes::Nodes;
use jackalope_fleet::routes;
use jackalope_placement::{
    CheckpointError, LinkKind, LinkSpeed, Links, NodeOffer, Placement, PlacementConstraints,
    PlacementModel, PlacementRefusal, faster_with_fewer, place,
};
use jackalope_protocol::Backend;
use jackalope_protocol::machine::NodeFacts;
use jackalope_protocol::split::Split;
use tracing::warn;

use crate::split_constraints::GivenSplit;

/// Maximum time in which an agent must report the programs it runs.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// Decides what each of several machines loads: takes hostfile positions and returns a split, or
/// the reason why there is none.
pub(crate) type Cut = Box<dyn FnMut(&[usize]) -> Result<CutPlan, String> + Send>;

/// The split of a model over several machines, and its estimated speed.
pub(crate) struct CutPlan {
    pub(crate) split: Split,
    /// Estimated duration of a typical request in seconds, if known.
    pub(crate) usual_request_s: Option<f64>,
}

impl CutPlan {
    pub(crate) fn of(placement: Placement) -> CutPlan {
        let usual_request_s = placement.speed.map(|speed| speed.usual_request_s());
        CutPlan { split: placement.split, usual_request_s }
    }
}

/// Places a model on several machines.
pub(crate) struct Placer {
    model: PlacementModel,
    hosts: Vec<Host>,
    nodes: Arc<Nodes>,
    constraints: PlacementConstraints,
    links: Links,
}

/// Function that returns how many bytes of a machine's memory a split may use.
pub(crate) type Memory = fn(&NodeFacts) -> u64;

/// Memory of an idle machine: the part that macOS allows a GPU to use.
pub(crate) const IDLE: Memory = |facts| facts.total_bytes / 4 * 3;

/// Memory that is free now.
const FREE: Memory = |facts| facts.free_bytes;

/// Returns a function that cuts the model as the user's `split` says, reduced to the given
/// machines.
pub(crate) fn given(split: GivenSplit) -> Cut {
    Box::new(move |positions| {
        let split = split.for_some(positions);
        Ok(CutPlan { split, usual_request_s: None })
    })
}

impl Placer {
    /// Creates a placer for the checkpoint in a directory.
    ///
    /// # Errors
    /// If the checkpoint cannot be read.
    pub(crate) fn new(
        model_dir: &Path,
        hosts: &[Host],
        backend: Backend,
        nodes: &Arc<Nodes>,
        constraints: PlacementConstraints,
    ) -> Result<Placer, CheckpointError> {
        let model = PlacementModel::read(model_dir)?;
        let links = links(hosts, nodes, backend);
        let (hosts, nodes) = (hosts.to_vec(), Arc::clone(nodes));
        Ok(Placer { model, hosts, nodes, constraints, links })
    }

    /// Returns a function that computes splits. They follow the installed memory, so that a
    /// coordinator that comes back finds the split that its ranks have loaded. Only the first split
    /// follows the free memory, if no rank of this server runs yet and the memory that is free now
    /// does not hold the usual split. With the first split, a warning is logged if fewer machines
    /// are expected to be faster.
    ///
    /// `name` distinguishes this model's ranks from those of others.
    pub(crate) fn cut(self, name: Option<&str>) -> Cut {
        let mut is_ours_running = self.runs_already(name);
        let mut is_first = true;
        Box::new(move |positions| {
            let idle = self.place(positions, IDLE);
            let (memory, placement) = if std::mem::replace(&mut is_ours_running, true) {
                (IDLE, idle.map_err(|refusal| refusal.to_string())?)
            } else {
                let free = self.place(positions, FREE).map_err(|refusal| refusal.to_string())?;
                let fits = |idle: &Placement| {
                    let mut ranks = idle.ranks.iter().zip(&free.ranks);
                    ranks.all(|(idle, free)| idle.need.total() <= free.usable_bytes)
                };
                (FREE, idle.ok().filter(fits).unwrap_or(free))
            };
            if std::mem::take(&mut is_first) {
                self.warn_of_fewer(positions, memory, &placement);
            }
            Ok(CutPlan::of(placement))
        })
    }

    /// Logs if fewer of the machines are expected to answer sooner than the placement does.
    fn warn_of_fewer(&self, positions: &[usize], memory: Memory, placement: &Placement) {
        let (offers, links) = (self.offers(positions, memory), self.links.among(positions));
        let fewer = faster_with_fewer(&self.model, &offers, &links, self.constraints, placement);
        if let Some(fewer) = fewer {
            warn!("{fewer}; hint: {}", fewer.hint());
        }
    }

    fn runs_already(&self, name: Option<&str>) -> bool {
        let is_ours = |it: &ProgramStatus| name.is_none_or(|name| is_rank_of(&it.name, name));
        let runs = |programs: Vec<ProgramStatus>| programs.iter().any(is_ours);
        self.nodes.nodes.iter().any(|node| node.agent.status(STATUS_TIMEOUT).is_ok_and(runs))
    }

    fn place(&self, positions: &[usize], memory: Memory) -> Result<Placement, PlacementRefusal> {
        let offers = self.offers(positions, memory);
        place_on_all(&self.model, &offers, &self.links.among(positions), self.constraints)
    }

    fn offers(&self, positions: &[usize], memory: Memory) -> Vec<NodeOffer> {
        let of_rank = &self.nodes.of_rank;
        let offer = |&at: &usize| {
            let beside = positions.iter().filter(|&&it| of_rank[it] == of_rank[at]).count();
            let facts = &self.nodes.nodes[of_rank[at]].facts;
            let facts = NodeFacts { free_bytes: memory(facts), ..facts.clone() };
            NodeOffer::from_facts(self.hosts[at].name(), &facts, beside as u64)
        };
        positions.iter().map(offer).collect()
    }
}

/// Returns the name of a rank of one of several models.
pub(crate) fn rank_name(rank: usize, model: &str) -> String {
    format!("rank {rank} of {model}")
}

fn is_rank_of(program: &str, model: &str) -> bool {
    let rank = program.strip_prefix("rank ").and_then(|it| it.split_once(" of "));
    rank.is_some_and(|(_, of)| of == model)
}

/// The machine of a rank.
#[derive(Clone, Debug)]
pub(crate) struct RankMachine {
    /// Name of the machine.
    pub(crate) host: String,
    /// Hardware and system of the machine.
    pub(crate) facts: NodeFacts,
    /// Number of ranks on the machine.
    pub(crate) num_ranks: u64,
}

/// Returns the split of a model over all of these machines if nothing else runs there.
pub(crate) fn idle_split(
    model: &PlacementModel,
    machines: &[RankMachine],
    links: &Links,
    constraints: PlacementConstraints,
) -> Result<Split, PlacementRefusal> {
    let offer = |it: &RankMachine| {
        let facts = NodeFacts { free_bytes: IDLE(&it.facts), ..it.facts.clone() };
        NodeOffer::from_facts(it.host.clone(), &facts, it.num_ranks)
    };
    let offers: Vec<NodeOffer> = machines.iter().map(offer).collect();
    place_on_all(model, &offers, links, constraints).map(|it| it.split)
}

fn place_on_all(
    model: &PlacementModel,
    offers: &[NodeOffer],
    links: &Links,
    constraints: PlacementConstraints,
) -> Result<Placement, PlacementRefusal> {
    place(
        model,
        offers,
        links,
        PlacementConstraints { num_machines: Some(offers.len()), ..constraints },
    )
}

/// Returns the usual properties of the links between the machines. They are not measured, because a
/// coordinator that comes back must find the split that its ranks have loaded.
pub(crate) fn links(hosts: &[Host], nodes: &Nodes, backend: Backend) -> Links {
    let facts = |at: usize| &nodes.nodes[nodes.of_rank[at]].facts;
    let node = |at: usize| routes::RouteNode { host: &hosts[at], facts: Some(facts(at)) };
    let all: Vec<routes::RouteNode<'_>> = (0..hosts.len()).map(node).collect();
    let ways = routes::routes(&all).unwrap_or_default();
    let mut links = Links::usual(hosts.len(), LinkKind::Ethernet);
    for a in 0..hosts.len() {
        for b in (0..a).filter(|_| !ways.is_empty()) {
            let kind = match () {
                () if nodes.of_rank[a] == nodes.of_rank[b] => LinkKind::Loopback,
                () if backend == Backend::Jaccl => LinkKind::Rdma,
                () if routes::is_cable(facts(a), ways[a][b]) => LinkKind::Thunderbolt,
                () => LinkKind::Ethernet,
            };
            links.set(a, b, LinkSpeed::usual(kind));
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_known_by_their_model() {
        let name = rank_name(3, "org/name of mine");
        assert!(is_rank_of(&name, "org/name of mine"));
        assert!(!is_rank_of(&name, "mine") && !is_rank_of("rank 3", "mine"));
    }
}
