//! macOS: `sysctl` and `vm_stat`.

use std::time::Duration;

use super::MachineMemory;
use crate::process::output_of;

const COMMAND_TIMEOUT: Duration = Duration::from_secs(3);

/// This machine.
pub fn facts() -> crate::facts::NodeFacts {
    let memory = memory();
    crate::facts::NodeFacts {
        total_bytes: memory.map_or(0, |it| it.total_bytes),
        free_bytes: memory.map_or(0, |it| it.free_bytes),
        ..crate::facts::NodeFacts::default()
    }
}

/// This machine's memory, if the commands tell. The GPU may wire at most `iogpu.wired_limit_mb`
/// of it, or about three quarters where that is 0 (Apple's default).
pub fn memory() -> Option<MachineMemory> {
    let total = output_of("sysctl", &["-n", "hw.memsize"], COMMAND_TIMEOUT).ok()?;
    let wired_limit = output_of("sysctl", &["-n", "iogpu.wired_limit_mb"], COMMAND_TIMEOUT);
    let pages = output_of("vm_stat", &[], COMMAND_TIMEOUT).ok()?;
    parse(&total, wired_limit.as_deref().unwrap_or("0"), &pages)
}

/// Reads the three commands' outputs.
pub fn parse(memsize: &str, wired_limit_mb: &str, vm_stat: &str) -> Option<MachineMemory> {
    let total_bytes: u64 = memsize.trim().parse().ok()?;
    let gpu_bytes = match wired_limit_mb.trim().parse::<u64>().ok()? {
        0 => total_bytes / 4 * 3,
        limit_mb => limit_mb << 20,
    };
    let free_bytes = parse_vm_stat(vm_stat)?.min(gpu_bytes);
    Some(MachineMemory { total_bytes, free_bytes })
}

/// Free, inactive, speculative and purgeable pages: what the system gives without swapping.
fn parse_vm_stat(text: &str) -> Option<u64> {
    let page_bytes: u64 = text.split("page size of ").nth(1)?.split(' ').next()?.parse().ok()?;
    let pages = |key: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().trim_end_matches('.').parse().ok()
    };
    let free = pages("Pages free:")? + pages("Pages inactive:")? + pages("Pages speculative:")?;
    Some((free + pages("Pages purgeable:").unwrap_or(0)) * page_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_gpu_limit_bounds_it() {
        let found = parse("68719476736", "1024", VM_STAT).unwrap();
        assert_eq!(found.free_bytes, 1 << 30);
        assert_eq!(parse("68719476736", "0", "nonsense"), None);
    }
}
