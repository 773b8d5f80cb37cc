//! How much of a model each machine gets.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

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
type Memory = fn(&NodeFacts) -> u64;

/// When nothing else runs there: the part that macOS lets a GPU have.
const IDLE: Memory = |facts| facts.total_bytes / 4 * 3;

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
    pub(crate) fn cut(self) -> Cut {
        let mut is_ours_running = self.runs_already();
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

    fn runs_already(&self) -> bool {
        let runs = |programs: Vec<_>| !programs.is_empty();
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
        let wishes = Wishes { context_tokens: self.context, num_machines: Some(offers.len()) };
        // How fast the links are changes the speed that is foretold, not the shares.
        place(&self.model, &offers, &Links::usual(offers.len(), LinkKind::Ethernet), wishes)
    }
}
