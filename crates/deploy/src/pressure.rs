//! Reports the memory of the ranks' machines to an engine, as long as the engine lives.

use std::sync::{Arc, Weak};
use std::time::Duration;

use jackalope_engine::{EngineHandle, MemoryReading};
use jackalope_fleet::agent::AgentState;
use jackalope_fleet::nodes::Nodes;
use jackalope_fleet::platform;
use jackalope_protocol::{MemoryPressure, PressureLimits};

/// Interval between two reports.
const INTERVAL: Duration = Duration::from_secs(2);

/// Timeout of one request to an agent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Name of this machine in messages.
const THIS_MACHINE: &str = "this machine";

/// Machines whose memory is watched.
#[derive(Debug)]
pub(crate) enum Watched {
    /// This machine.
    Here,
    /// Machines with agents. Watching does not keep the connections to them alive.
    Agents(Weak<Nodes>),
    /// No machine: machines whose ranks are started by hand cannot be queried.
    Nobody,
}

impl Watched {
    /// Watches the machines of these agents.
    pub(crate) fn agents(nodes: &Arc<Nodes>) -> Watched {
        Watched::Agents(Arc::downgrade(nodes))
    }

    /// Queries the memory of each machine that can be reached.
    fn ask(&self) -> Vec<(String, MemoryPressure)> {
        let of_agent = |node: &jackalope_fleet::nodes::Node| {
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

/// Starts reporting to `engine`. The thread ends with the engine.
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

/// Returns the machine with the least memory left; one that reports nothing is not considered.
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
    use jackalope_protocol::{MachineMemory, PressureTier};

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
