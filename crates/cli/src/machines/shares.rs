//! How much of a model each machine gets.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jackalope_cluster::agent::ProgramStatus;
use jackalope_cluster::facts::NodeFacts;
use jackalope_cluster::hostfile::Host;
use jackalope_cluster::nodes::Nodes;
use jackalope_cluster::placement::{
    LinkKind, Links, ModelFacts, NodeOffer, Placement, Refusal, Wishes, place,
};

use super::launcher::Cut;

/// How long an agent may take to tell what it runs.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// Places a model on several machines.
pub(crate) struct Placer {
    model: ModelFacts,
    hosts: Vec<Host>,
    nodes: Arc<Nodes>,
    context: Option<u32>,
}

/// What of a machine's memory counts, in bytes.
pub(crate) type Memory = fn(&NodeFacts) -> u64;

/// When nothing else runs there: the part that macOS lets a GPU have.
pub(crate) const IDLE: Memory = |facts| facts.total_bytes / 4 * 3;

/// Now.
const FREE: Memory = |facts| facts.free_bytes;

/// As the user says.
pub(crate) fn given(shares: Vec<u32>) -> Cut {
    Box::new(move |positions| Ok(positions.iter().map(|&at| shares[at]).collect()))
}

impl Placer {
    /// For the checkpoint in a folder.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn new(
        model_dir: &Path,
        hosts: &[Host],
        nodes: &Arc<Nodes>,
        context: Option<u32>,
    ) -> anyhow::Result<Placer> {
        let (hosts, nodes) = (hosts.to_vec(), Arc::clone(nodes));
        Ok(Placer { model: ModelFacts::read(model_dir)?, hosts, nodes, context })
    }

    /// Shares that follow the memory that is installed, so that a brain that comes back finds the
    /// split its ranks have loaded. If nothing of ours runs yet, and what is free now does not hold
    /// that split, it follows what is free.
    ///
    /// `name` tells this model's ranks from those of others.
    pub(crate) fn cut(self, name: Option<&str>) -> Cut {
        let mut is_ours_running = self.runs_already(name);
        Box::new(move |positions| {
            let idle = self.place(positions, IDLE);
            if std::mem::replace(&mut is_ours_running, true) {
                return idle.map(|it| it.shares()).map_err(|refusal| refusal.to_string());
            }
            let free = self.place(positions, FREE).map_err(|refusal| refusal.to_string())?;
            let fits = |idle: &Placement| {
                let mut ranks = idle.ranks.iter().zip(&free.ranks);
                ranks.all(|(idle, free)| idle.need.total() <= free.usable_bytes)
            };
            Ok(idle.ok().filter(fits).unwrap_or(free).shares())
        })
    }

    fn runs_already(&self, name: Option<&str>) -> bool {
        let is_ours = |it: &ProgramStatus| name.is_none_or(|name| is_rank_of(&it.name, name));
        let runs = |programs: Vec<ProgramStatus>| programs.iter().any(is_ours);
        self.nodes.nodes.iter().any(|node| node.agent.status(STATUS_TIMEOUT).is_ok_and(runs))
    }

    fn place(&self, positions: &[usize], memory: Memory) -> Result<Placement, Refusal> {
        let of_rank = &self.nodes.of_rank;
        let offer = |&at: &usize| {
            let beside = positions.iter().filter(|&&it| of_rank[it] == of_rank[at]).count();
            let facts = &self.nodes.nodes[of_rank[at]].facts;
            let facts = NodeFacts { free_bytes: memory(facts), ..facts.clone() };
            NodeOffer::from_facts(self.hosts[at].name(), &facts, beside as u64)
        };
        let offers: Vec<NodeOffer> = positions.iter().map(offer).collect();
        place_on_all(&self.model, &offers, self.context)
    }
}

/// What the ranks of one of several models are called.
pub(crate) fn rank_name(rank: usize, model: &str) -> String {
    format!("rank {rank} of {model}")
}

fn is_rank_of(program: &str, model: &str) -> bool {
    let rank = program.strip_prefix("rank ").and_then(|it| it.split_once(" of "));
    rank.is_some_and(|(_, of)| of == model)
}

/// The shares of a model on all of these machines when nothing else runs there.
pub(crate) fn idle_shares(
    model: &ModelFacts,
    facts: &[(String, NodeFacts, u64)],
    context: Option<u32>,
) -> Result<Vec<u32>, Refusal> {
    let offer = |(name, facts, num_ranks): &(String, NodeFacts, u64)| {
        let facts = NodeFacts { free_bytes: IDLE(facts), ..facts.clone() };
        NodeOffer::from_facts(name.clone(), &facts, *num_ranks)
    };
    let offers: Vec<NodeOffer> = facts.iter().map(offer).collect();
    place_on_all(model, &offers, context).map(|it| it.shares())
}

fn place_on_all(
    model: &ModelFacts,
    offers: &[NodeOffer],
    context_tokens: Option<u32>,
) -> Result<Placement, Refusal> {
    let wishes = Wishes { context_tokens, num_machines: Some(offers.len()) };
    // How fast the links are changes the speed that is foretold, not the shares.
    place(model, offers, &Links::usual(offers.len(), LinkKind::Ethernet), wishes)
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
