//! Measures how much memory this process uses.

use jackalope_protocol::RankMemory;

/// Reads MLX's counters and the system's. `kv_bytes` is the size of the sequences' caches.
pub(crate) fn now(kv_bytes: u64) -> RankMemory {
    RankMemory {
        active_bytes: jackalope_mlx::memory::active_bytes() as u64,
        cache_bytes: jackalope_mlx::memory::cache_bytes() as u64,
        kv_bytes,
        resident_bytes: resident_bytes().unwrap_or(0),
        peak_bytes: jackalope_mlx::memory::peak_bytes() as u64,
    }
}

/// Returns the resident set as the kernel counts it, where `/proc` exists; elsewhere the
/// coordinator asks the system by process id.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    parse_kib(&status, "VmRSS:")
}

/// Returns the memory that the machine has available, from `/proc`; 0 where that does not exist,
/// and the coordinator asks the system itself.
pub(crate) fn free_bytes() -> u64 {
    let free = std::fs::read_to_string("/proc/meminfo").ok();
    free.and_then(|text| parse_kib(&text, "MemAvailable:")).unwrap_or(0)
}

fn parse_kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_by_their_key() {
        assert_eq!(parse_kib("Name:\tx\nVmRSS:\t    1284 kB\n", "VmRSS:"), Some(1284 * 1024));
        assert_eq!(parse_kib("Name:\tx\n", "VmRSS:"), None);
    }
}
