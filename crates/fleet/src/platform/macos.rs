//! macOS: parses `sysctl`, `vm_stat`, `sw_vers` and `ifconfig`.

mod heat;
pub mod network;

use std::ffi::OsString;
use std::time::Duration;

use jackalope_protocol::machine::{NodeFacts, Thermal};
use jackalope_protocol::{MachineMemory, MemoryPressure, PressureTier};

use super::{Version, chips};
use crate::facts::Sections;
use crate::process::{Child, Spawn, output_of};

pub use heat::heat;

const COMMAND_TIMEOUT: Duration = Duration::from_secs(3);

/// Returns when a process started, as `ps` prints it; `None` if it does not run.
pub fn process_began(pid: u32) -> Option<String> {
    let args = ["-o", "lstart=", "-p", &pid.to_string()];
    let printed = output_of("ps", &args, COMMAND_TIMEOUT).ok()?;
    Some(printed.trim().to_owned()).filter(|began| !began.is_empty())
}

/// Keeps this Mac awake while both the returned child and this process live. Otherwise the RDMA
/// ports of an idle Mac go down.
pub fn keep_awake() -> Option<Child> {
    let mut spawn = Spawn::new("/usr/bin/caffeinate", "caffeinate");
    let pid = std::process::id().to_string();
    spawn.args = ["-i", "-m", "-s", "-w", &pid].map(OsString::from).to_vec();
    // If `caffeinate` cannot be started, the Mac's own sleep settings stay in effect.
    spawn.start().ok()
}

/// Parses `pmset -g therm`: the limit of the processor's speed, or that there is none.
fn thermal(text: &str) -> Option<Thermal> {
    let limit = text.lines().find_map(|line| line.trim().strip_prefix("CPU_Speed_Limit"));
    match limit.and_then(|it| it.trim_start_matches([' ', '=', '\t']).trim().parse::<u8>().ok()) {
        Some(limit) if limit < 100 => Some(Thermal::SlowedDownTo(limit)),
        Some(_) => Some(Thermal::Normal),
        None => text.contains("No thermal warning").then_some(Thermal::Normal),
    }
}

/// Returns this machine's memory, if the commands report it. The GPU may wire at most
/// `iogpu.wired_limit_mb` of it, or about three quarters if that is 0 (Apple's default).
pub fn memory() -> Option<MachineMemory> {
    let total = output_of("sysctl", &["-n", "hw.memsize"], COMMAND_TIMEOUT).ok()?;
    let wired_limit = output_of("sysctl", &["-n", "iogpu.wired_limit_mb"], COMMAND_TIMEOUT);
    let pages = output_of("vm_stat", &[], COMMAND_TIMEOUT).ok()?;
    parse(&total, wired_limit.as_deref().unwrap_or("0"), &pages)
}

/// Returns the state of this machine's memory.
pub fn pressure() -> Option<MemoryPressure> {
    let args = ["-n", "kern.memorystatus_vm_pressure_level"];
    let level = output_of("sysctl", &args, COMMAND_TIMEOUT);
    let assessment = level.ok().and_then(|it| parse_pressure_level(&it));
    Some(MemoryPressure { memory: memory()?, assessment })
}

/// Parses the level of `kern.memorystatus_vm_pressure_level`, numbered as
/// `DISPATCH_MEMORYPRESSURE_*`.
fn parse_pressure_level(text: &str) -> Option<PressureTier> {
    match text.trim() {
        "1" => Some(PressureTier::Normal),
        "2" => Some(PressureTier::Warn),
        "4" => Some(PressureTier::Critical),
        _ => None,
    }
}

/// Parses a machine's facts, except for its host name.
pub fn facts_of(sections: &Sections) -> NodeFacts {
    let sysctl = sections.any_text("sysctl");
    let value = |key: &str| field(sysctl, key).unwrap_or_default();
    let limit = Some(value("iogpu.wired_limit_mb")).filter(|it| !it.is_empty());
    let memory = parse(value("hw.memsize"), limit.unwrap_or("0"), sections.text("vm_stat"));
    let total_bytes = value("hw.memsize").parse().unwrap_or(0);
    let chip = value("machdep.cpu.brand_string").to_owned();
    let cores = value("hw.logicalcpu").parse().unwrap_or(0);
    let arch = match sections.text("uname").split_whitespace().nth(2) {
        Some("arm64") => "aarch64",
        Some(arch) => arch,
        None => "",
    };
    let (is_apple, gpu) = (chip.starts_with("Apple"), chip.clone());
    let (version, build) = system_version(sections.text("sw_vers"));
    let version = version.map_or_else(|| "?".to_owned(), |it| it.to_string());
    NodeFacts {
        hostname: String::new(),
        os: format!("macOS {version} ({build})"),
        arch: arch.to_owned(),
        memory_bytes_per_s: chips::memory_bytes_per_s(&chip, cores),
        chip,
        cores,
        total_bytes,
        free_bytes: memory.map_or(0, |it| it.free_bytes),
        load_percent: super::load_percent(value("vm.loadavg").trim_start_matches('{'), cores),
        gpu: is_apple.then_some(gpu),
        thermal: thermal(sections.text("therm")),
        interfaces: network::interfaces(sections.text("ifconfig")),
    }
}

/// Returns the value of `key` in a line `key: value`; blanks around it are removed.
pub fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

/// Parses version and build from `sw_vers`.
pub fn system_version(text: &str) -> (Option<Version>, String) {
    let version = field(text, "ProductVersion").and_then(Version::parse);
    (version, field(text, "BuildVersion").unwrap_or_default().to_owned())
}

/// Derives the memory from the values of `hw.memsize` and `iogpu.wired_limit_mb` and the output of
/// `vm_stat`.
pub fn parse(memsize: &str, wired_limit_mb: &str, vm_stat: &str) -> Option<MachineMemory> {
    let total_bytes: u64 = memsize.trim().parse().ok()?;
    let gpu_bytes = match wired_limit_mb.trim().parse::<u64>().ok()? {
        0 => total_bytes / 4 * 3,
        limit_mb => limit_mb << 20,
    };
    let free_bytes = parse_vm_stat(vm_stat)?.min(gpu_bytes);
    Some(MachineMemory { total_bytes, free_bytes })
}

/// Returns the free, inactive, speculative and purgeable memory, which the system can give out
/// without swapping.
fn parse_vm_stat(text: &str) -> Option<u64> {
    let free = pages(text, "Pages free:")?
        + pages(text, "Pages inactive:")?
        + pages(text, "Pages speculative:")?;
    Some((free + pages(text, "Pages purgeable:").unwrap_or(0)) * page_bytes(text)?)
}

/// Returns the size of a page from `vm_stat`, in bytes.
pub fn page_bytes(vm_stat: &str) -> Option<u64> {
    vm_stat.split("page size of ").nth(1)?.split(' ').next()?.parse().ok()
}

/// Returns one of the counters of `vm_stat`, in pages.
pub fn pages(vm_stat: &str, key: &str) -> Option<u64> {
    let line = vm_stat.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().trim_end_matches('.').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_of_pressure_is_read_by_its_number() {
        let tiers = ["1\n", "2\n", "4\n"].map(parse_pressure_level);
        let wanted = [PressureTier::Normal, PressureTier::Warn, PressureTier::Critical];
        assert_eq!(tiers, wanted.map(Some));
        let unknown = "sysctl: unknown oid 'kern.memorystatus_vm_pressure_level'";
        assert_eq!(parse_pressure_level(unknown), None);
    }

    const VM_STAT: &str = "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n\
        Pages free:                              100000.\n\
        Pages active:                            500000.\n\
        Pages inactive:                          200000.\n\
        Pages speculative:                        10000.\n\
        Pages throttled:                              0.\n\
        Pages wired down:                        150000.\n\
        Pages purgeable:                           5000.\n";

    #[test]
    fn free_memory_is_what_can_be_had_without_swapping() {
        let found = parse("68719476736\n", "0\n", VM_STAT).unwrap();
        assert_eq!(found.total_bytes, 64 << 30);
        assert_eq!(found.free_bytes, 315_000 * 16384);
    }

    #[test]
    fn a_mac_that_is_too_hot_says_so() {
        // The format of `pmset -g therm`; Apple silicon prints no limits.
        let cool = "Note: No thermal warning level has been recorded\n\
                    Note: No performance warning level has been recorded\n";
        let hot = "CPU Power notify\n\tCPU_Scheduler_Limit \t= 100\n\tCPU_Speed_Limit \t= 80\n";
        assert_eq!(thermal(cool), Some(Thermal::Normal));
        assert_eq!(thermal(hot).unwrap().to_string(), "slowed down to 80 %");
        assert_eq!(thermal(&hot.replace("80", "100")), Some(Thermal::Normal));
        assert_eq!(thermal(&hot.replace("80", "-1")), None, "a limit that makes no sense");
        assert_eq!(thermal(""), None);
    }

    #[test]
    fn the_gpu_limit_bounds_it() {
        let found = parse("68719476736", "1024", VM_STAT).unwrap();
        assert_eq!(found.free_bytes, 1 << 30);
        assert_eq!(parse("68719476736", "0", "nonsense"), None);
    }

    #[test]
    fn versions_are_read() {
        let text = "ProductName:\t\tmacOS\nProductVersion:\t\t26.3\nBuildVersion:\t\t25D125\n";
        let (version, build) = system_version(text);
        assert_eq!((version.unwrap().to_string().as_str(), build.as_str()), ("26.3", "25D125"));
    }
}
