//! Tells an engine what the machines of its ranks say of their memory, as long as it lives.

use std::sync::{Arc, Weak};
use std::time::Duration;

use jackalope_cluster::agent::AgentState;
use jackalope_cluster::nodes::Nodes;
use jackalope_cluster::platform::{self, MemoryPressure, PressureLimits};
use jackalope_engine::{EngineHandle, MemoryReading};

/// Between two questions.
const INTERVAL: Duration = Duration::from_secs(2);

/// How long an agent may take to answer one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// What people call the machine that runs this.
const THIS_MACHINE: &str = "this machine";

/// Whose memory matters.
#[derive(Debug)]
pub(crate) enum Watched {
    /// This machine's.
    Here,
    /// That of machines with agents, which are not kept busy by being watched.
    Agents(Weak<Nodes>),
    /// Nobody's: ranks that are started by hand on other machines are not ours to ask.
    Nobody,
}

impl Watched {
    pub(crate) fn agents(nodes: &Arc<Nodes>) -> Watched {
        Watched::Agents(Arc::downgrade(nodes))
    }

    /// What each machine says that can be asked.
    fn ask(&self) -> Vec<(String, MemoryPressure)> {
        let of_agent = |node: &jackalope_cluster::nodes::Node| {
            let is_up = node.agent.state() == AgentState::Up;
            let pressure = is_up.then(|| node.agent.memory(ANSWER_TIMEOUT).ok())??;
            Some((node.agent.host().to_owned(), pressure))
        };
        match self {
            Watched::Here => platform::current::pressure()
                .map(|pressure| (THIS_MACHINE.to_owned(), pressure))
                .into_iter()
                .collect(),
            Watched::Agents(nodes) => {
                let nodes = nodes.upgrade();
                nodes.iter().flat_map(|it| &it.nodes).filter_map(of_agent).collect()
            }
            Watched::Nobody => Vec::new(),
        }
    }
}

/// Begins to tell `engine`. The thread ends with the engine.
pub(crate) fn watch(watched: Watched, limits: PressureLimits, engine: EngineHandle) {
    if let Watched::Nobody = watched {
        return;
    }
    let watching = move || {
        while engine.report_memory(worst(watched.ask(), limits)) {
            std::thread::sleep(INTERVAL);
        }
    };
    let thread = std::thread::Builder::new().name("memory".to_owned()).spawn(watching);
    thread.expect("a process that just started can start a thread");
}

/// The machine that is shortest of memory; one that says nothing is not known to be short of it.
fn worst(told: Vec<(String, MemoryPressure)>, limits: PressureLimits) -> MemoryReading {
    let readings = told.into_iter().map(|(host, pressure)| MemoryReading {
        tier: pressure.tier(limits),
        host,
        free_bytes: pressure.memory.free_bytes,
    });
    let key = |it: &MemoryReading| (it.tier, std::cmp::Reverse(it.free_bytes));
    readings.max_by_key(key).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use jackalope_cluster::platform::MachineMemory;
    use jackalope_protocol::PressureTier;

    use super::*;

    #[test]
    fn the_machine_that_is_shortest_of_memory_is_told() {
        let told = |host: &str, free_bytes, told| {
            let memory = MachineMemory { total_bytes: 64 << 30, free_bytes };
            (host.to_owned(), MemoryPressure { memory, told })
        };
        let all = vec![
            told("mac1", 3 << 30, None),
            told("mac2", 9 << 30, Some(PressureTier::Warn)),
            told("mac3", 2 << 30, None),
        ];
        let found = worst(all.clone(), PressureLimits::default());
        assert_eq!((found.host.as_str(), found.tier), ("mac2", PressureTier::Warn));
        let limits = PressureLimits { warn_bytes: Some(4 << 30), critical_bytes: None };
        let found = worst(all, limits);
        assert_eq!((found.host.as_str(), found.free_bytes), ("mac3", 2 << 30));
        assert_eq!(worst(Vec::new(), limits), MemoryReading::default());
    }
}
