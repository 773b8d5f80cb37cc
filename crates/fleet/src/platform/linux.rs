//! Linux: parses the text files under `/proc`, and the output of `ip`.

mod heat;
pub mod network;

use std::collections::BTreeMap;

use jackalope_protocol::machine::{NodeFacts, Thermal};
use jackalope_protocol::{MachineMemory, MemoryPressure};

use super::chips;
use crate::facts::Sections;
use crate::process::Child;

pub use heat::heat;

/// Maximum plausible temperature in degrees Celsius; processors switch off below it.
const CELSIUS_MAX: u8 = 150;

/// Returns when a process started, in ticks since boot; `None` if it does not run.
pub fn process_began(pid: u32) -> Option<String> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses the start time in `/proc/PID/stat` (field 22). A zombie gets a value that equals no start
/// time.
fn parse_stat(text: &str) -> Option<String> {
    // The program's name, in parentheses, may contain any character.
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    match fields.next()? {
        "Z" | "X" => Some("ended".to_owned()),
        _ => fields.nth(18).map(str::to_owned),
    }
}

/// Returns this machine's memory, if `/proc` reports it.
pub fn memory() -> Option<MachineMemory> {
    parse_meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Returns the state of this machine's memory. The kernel's pressure stall information is not used,
/// because it also counts waiting for file pages that are read again.
pub fn pressure() -> Option<MemoryPressure> {
    Some(MemoryPressure { memory: memory()?, assessment: None })
}

/// Parses a machine's facts, except for its host name.
pub fn facts_of(sections: &Sections) -> NodeFacts {
    let mut words = sections.text("uname").split_whitespace();
    let (system, release) = (words.next().unwrap_or("?"), words.next().unwrap_or("?"));
    let arch = words.next().unwrap_or_default().to_owned();
    let memory = parse_meminfo(sections.text("meminfo"));
    let (chip, cores) = parse_cpuinfo(sections.text("cpuinfo"));
    let speeds = network::speeds(sections.any_text("net_speed"));
    let mut interfaces = network::ip_addr(sections.text("ip_addr"));
    if interfaces.is_empty() {
        interfaces = network::without_ip(sections.text("fib_trie"), sections.text("net_route"));
    }
    for interface in &mut interfaces {
        interface.bits_per_s = speeds.get(&interface.name).copied();
    }
    NodeFacts {
        hostname: String::new(),
        os: format!("{system} {release}"),
        arch,
        memory_bytes_per_s: chips::memory_bytes_per_s(&chip, cores),
        chip,
        cores,
        total_bytes: memory.map_or(0, |it| it.total_bytes),
        free_bytes: memory.map_or(0, |it| it.free_bytes),
        load_percent: super::load_percent(sections.text("loadavg"), cores),
        gpu: sections
            .text("nvidia")
            .lines()
            .map(str::trim)
            .find(|it| !it.is_empty())
            .map(str::to_owned),
        thermal: hottest(sections.any_text("zones")),
        interfaces,
    }
}

/// Does nothing: servers do not go to sleep by themselves.
pub fn keep_awake() -> Option<Child> {
    None
}

/// Returns the hottest of the kernel's sensors, which are in thousandths of a degree. A sensor that
/// reports zero, or what no running machine has, is broken or not connected.
fn hottest(sensors: &str) -> Option<Thermal> {
    let celsius = |text: &str| u8::try_from(text.parse::<i64>().ok()? / 1000).ok();
    let degrees = sensors.split_whitespace().filter_map(celsius);
    degrees.filter(|it| (1..=CELSIUS_MAX).contains(it)).max().map(Thermal::Celsius)
}

/// Parses `/proc/meminfo`.
pub fn parse_meminfo(text: &str) -> Option<MachineMemory> {
    let bytes = |key: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    };
    Some(MachineMemory { total_bytes: bytes("MemTotal:")?, free_bytes: bytes("MemAvailable:")? })
}

/// Parses the processor's name and the number of logical cores from `/proc/cpuinfo`.
fn parse_cpuinfo(text: &str) -> (String, u32) {
    let cores = text.lines().filter(|line| line.starts_with("processor")).count();
    let fields: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.split_once(':').map(|(key, value)| (key.trim(), value.trim())))
        .collect();
    // x86 has a name; ARM has one on some boards only, otherwise numbers of implementer and part.
    let name = ["model name", "Model", "Hardware"].iter().find_map(|key| fields.get(key).copied());
    let part = || match (fields.get("CPU implementer"), fields.get("CPU part")) {
        (Some(maker), Some(part)) => format!("ARM {maker} {part}"),
        _ => "unknown".to_owned(),
    };
    let name = name.map_or_else(part, str::to_owned);
    (name, u32::try_from(cores).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_zone_counts() {
        assert_eq!(hottest("27800\n54000\n-1000\n").unwrap().to_string(), "54 °C");
        assert_eq!(hottest("cat: no such file"), None);
        let broken = "0 -273150 151000 65261850 9223372036854775807 99999999999999999999";
        assert_eq!(hottest(broken), None);
        assert_eq!(hottest(&format!("{broken} 38000")), Some(Thermal::Celsius(38)));
    }

    #[test]
    fn the_start_time_of_a_process_is_read() {
        let stat = "12 (a ) b) S 1 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 9 8 7";
        assert_eq!(parse_stat(stat).as_deref(), Some("4711"));
        assert_eq!(parse_stat(&stat.replace(") S", ") Z")).as_deref(), Some("ended"));
        assert_eq!(parse_stat("nonsense"), None);
    }

    #[test]
    fn meminfo_is_read() {
        let text =
            "MemTotal:       24570032 kB\nMemFree:        1000 kB\nMemAvailable:   20000000 kB\n";
        let wanted = MachineMemory { total_bytes: 24_570_032 << 10, free_bytes: 20_000_000 << 10 };
        assert_eq!(parse_meminfo(text), Some(wanted));
        assert_eq!(parse_meminfo("MemTotal: many\n"), None);
    }

    #[test]
    fn processors_are_named_on_x86_and_on_arm() {
        let text = "processor\t: 0\nmodel name\t: AMD EPYC 9B14\nprocessor\t: 1\n";
        assert_eq!(parse_cpuinfo(text), ("AMD EPYC 9B14".to_owned(), 2));
        let text = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n";
        assert_eq!(parse_cpuinfo(text), ("ARM 0x41 0xd4f".to_owned(), 1));
    }
}
