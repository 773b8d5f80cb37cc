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

/// Places a model on several machines whose agents are connected.
pub(crate) struct Placer {
    site: Site,
    nodes: Arc<Nodes>,
}

/// A model, and the machines to place it on.
struct Site {
    model: PlacementModel,
    /// For each entry of the hostfile, the name of the host and an index into `facts`.
    hosts: Vec<(String, usize)>,
    /// Facts of each machine.
    facts: Vec<NodeFacts>,
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
        let names = hosts.iter().map(|host| host.name().to_owned());
        let hosts = names.zip(nodes.of_rank.iter().copied()).collect();
        let facts = nodes.nodes.iter().map(|node| node.facts.clone()).collect();
        let site = Site { model, hosts, facts, constraints, links };
        Ok(Placer { site, nodes: Arc::clone(nodes) })
    }

    /// Returns a function that computes splits. They follow the installed memory, so that a
    /// coordinator that comes back finds the split that its ranks have loaded. Only the first split
    /// follows the free memory, if no rank of this server runs yet and the memory that is free now
    /// does not hold the usual split. With the first split, a warning is logged if fewer machines
    /// are expected to be faster.
    ///
    /// `name` distinguishes this model's ranks from those of others.
    pub(crate) fn cut(self, name: Option<&str>) -> Cut {
        let is_ours_running = self.runs_already(name);
        self.site.cut(is_ours_running)
    }

    fn runs_already(&self, name: Option<&str>) -> bool {
        let is_ours = |it: &ProgramStatus| name.is_none_or(|name| is_rank_of(&it.name, name));
        let runs = |programs: Vec<ProgramStatus>| programs.iter().any(is_ours);
        self.nodes.nodes.iter().any(|node| node.agent.status(STATUS_TIMEOUT).is_ok_and(runs))
    }
}

impl Site {
    fn cut(self, mut is_ours_running: bool) -> Cut {
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

    fn place(&self, positions: &[usize], memory: Memory) -> Result<Placement, PlacementRefusal> {
        let offers = self.offers(positions, memory);
        place_on_all(&self.model, &offers, &self.links.among(positions), self.constraints)
    }

    fn offers(&self, positions: &[usize], memory: Memory) -> Vec<NodeOffer> {
        let offer = |&at: &usize| {
            let (name, machine) = &self.hosts[at];
            let beside = positions.iter().filter(|&&it| self.hosts[it].1 == *machine).count();
            let facts = &self.facts[*machine];
            let facts = NodeFacts { free_bytes: memory(facts), ..facts.clone() };
            NodeOffer::from_facts(name.as_str(), &facts, beside as u64)
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
    use std::io::{self, Write};
    use std::sync::Mutex;

    use jackalope_placement::SplitKind;

    use super::*;

    /// Keeps what is logged.
    #[derive(Clone, Default)]
    struct Logged(Arc<Mutex<Vec<u8>>>);

    impl Write for Logged {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns two Macs that Ethernet joins, and the model that ships.
    fn two_macs() -> Site {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/jackalope-mini");
        let facts = NodeFacts {
            os: "macOS 26.3".to_owned(),
            arch: "aarch64".to_owned(),
            total_bytes: 64 << 30,
            free_bytes: 48 << 30,
            memory_bytes_per_s: Some(400_000_000_000),
            ..NodeFacts::default()
        };
        let split = Some(SplitKind::Tensor);
        Site {
            model: PlacementModel::read(&model).unwrap(),
            hosts: vec![("mac1".to_owned(), 0), ("mac2".to_owned(), 1)],
            facts: vec![facts.clone(), facts],
            constraints: PlacementConstraints { split, ..PlacementConstraints::default() },
            links: Links::usual(2, LinkKind::Ethernet),
        }
    }

    #[test]
    fn the_first_split_warns_if_fewer_machines_are_expected_to_be_faster() {
        let logged = |mut cut: Cut, positions: &[usize]| {
            let written = Logged::default();
            let writer = written.clone();
            let log =
                tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
            tracing::subscriber::with_default(log.finish(), || {
                assert!(cut(positions).is_ok());
            });
            let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
            (cut, text)
        };
        for is_ours_running in [false, true] {
            let (cut, text) = logged(two_macs().cut(is_ours_running), &[0, 1]);
            let warning = "mac1 alone is expected to be faster than these 2 machines: ";
            assert!(text.contains(" WARN ") && text.contains(warning), "{text}");
            assert!(text.contains("hint: leave out the other machines: `--hosts mac1`"), "{text}");
            // Later splits follow machines that come and go.
            assert_eq!(logged(cut, &[0, 1]).1, "");
        }
        assert_eq!(logged(two_macs().cut(false), &[0]).1, "");
        let mut unknown = two_macs();
        unknown.facts[1].memory_bytes_per_s = None;
        assert_eq!(logged(unknown.cut(false), &[0, 1]).1, "");
    }

    #[test]
    fn ranks_are_known_by_their_model() {
        let name = rank_name(3, "org/name of mine");
        assert!(is_rank_of(&name, "org/name of mine"));
        assert!(!is_rank_of(&name, "mine") && !is_rank_of("rank 3", "mine"));
    }
}
