//! Reports memory, temperature, power and GPU load of the ranks' machines to an engine, as long as the
//! engine lives.

use std::sync::{Arc, Weak};
use std::time::Duration;

use jackalope_engine::{EngineHandle, MachineHeat, MemoryReading};
use jackalope_fleet::agent::AgentState;
use jackalope_fleet::heat::readings_here;
use jackalope_fleet::nodes::{Node, Nodes};
use jackalope_protocol::PressureLimits;
use jackalope_protocol::machine::{Heat, MachineReadings};

/// Interval between two reports.
const INTERVAL: Duration = Duration::from_secs(2);

/// Timeout of one request to an agent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Name of this machine in messages.
const THIS_MACHINE: &str = "this machine";

/// Machines that are watched.
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

    /// Queries each machine that can be reached.
    fn ask(&self) -> Vec<(String, MachineReadings)> {
        let of_agent = |node: &Node| {
            let is_up = node.agent.state() == AgentState::Up;
            let readings = is_up.then(|| node.agent.readings(ANSWER_TIMEOUT).ok())??;
            Some((node.agent.host().to_owned(), readings))
        };
        match self {
            Watched::Here => vec![(THIS_MACHINE.to_owned(), readings_here())],
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
        loop {
            let reports = watched.ask();
            let is_alive = engine.report_heat(heat_of(&reports));
            if !(is_alive && engine.report_memory(worst(reports, limits))) {
                return;
            }
            std::thread::sleep(INTERVAL);
        }
    };
    let thread = std::thread::Builder::new().name("memory".to_owned()).spawn(watching);
    thread.expect("a process that just started can start a thread");
}

/// Returns temperature, power and GPU load of the machines that report any. Ranks on this machine have
/// no name of a host.
fn heat_of(reports: &[(String, MachineReadings)]) -> Vec<MachineHeat> {
    let host = |host: &String| if host == THIS_MACHINE { String::new() } else { host.clone() };
    let reporting = reports.iter().filter(|(_, it)| it.heat != Heat::default());
    reporting.map(|(name, it)| MachineHeat { host: host(name), heat: it.heat }).collect()
}

/// Returns the machine with the least memory left; one that reports nothing is not considered.
fn worst(reports: Vec<(String, MachineReadings)>, limits: PressureLimits) -> MemoryReading {
    let readings = reports.into_iter().filter_map(|(host, readings)| {
        let pressure = readings.memory?;
        let (tier, free_bytes) = (pressure.tier(limits), pressure.memory.free_bytes);
        Some(MemoryReading { tier, host, free_bytes })
    });
    let key = |it: &MemoryReading| (it.tier, std::cmp::Reverse(it.free_bytes));
    readings.max_by_key(key).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use jackalope_protocol::machine::Thermal;
    use jackalope_protocol::{MachineMemory, MemoryPressure, PressureTier};

    use super::*;

    #[test]
    fn the_machine_that_is_shortest_of_memory_is_reported() {
        let report = |host: &str, free_bytes, assessment| {
            let memory = MachineMemory { total_bytes: 64 << 30, free_bytes };
            let memory = Some(MemoryPressure { memory, assessment });
            (host.to_owned(), MachineReadings { memory, heat: Heat::default() })
        };
        let all = vec![
            report("mac1", 3 << 30, None),
            report("mac2", 9 << 30, Some(PressureTier::Warn)),
            report("mac3", 2 << 30, None),
            ("mac4".to_owned(), MachineReadings::default()),
        ];
        let found = worst(all.clone(), PressureLimits::default());
        assert_eq!((found.host.as_str(), found.tier), ("mac2", PressureTier::Warn));
        let limits = PressureLimits { warn_bytes: Some(4 << 30), critical_bytes: None };
        let found = worst(all, limits);
        assert_eq!((found.host.as_str(), found.free_bytes), ("mac3", 2 << 30));
        assert_eq!(worst(Vec::new(), limits), MemoryReading::default());
    }

    #[test]
    fn machines_without_sensors_are_left_out_of_the_temperatures() {
        let hot = Heat { thermal: Some(Thermal::Celsius(71)), ..Heat::default() };
        let report = |host: &str, heat| (host.to_owned(), MachineReadings { memory: None, heat });
        let all = [report("mac1", Heat::default()), report(THIS_MACHINE, hot), report("mac3", hot)];
        let host = |it: &MachineHeat| (it.host.clone(), it.heat);
        let found: Vec<_> = heat_of(&all).iter().map(host).collect();
        assert_eq!(found, [(String::new(), hot), ("mac3".to_owned(), hot)]);
    }
}
