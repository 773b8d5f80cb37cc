//! Linux: text files under `/proc`.

use super::MachineMemory;

/// This machine.
pub fn facts() -> crate::facts::NodeFacts {
    let memory = memory();
    crate::facts::NodeFacts {
        total_bytes: memory.map_or(0, |it| it.total_bytes),
        free_bytes: memory.map_or(0, |it| it.free_bytes),
        ..crate::facts::NodeFacts::default()
    }
}

/// This machine's memory, if `/proc` tells.
pub fn memory() -> Option<MachineMemory> {
    parse_meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Reads `/proc/meminfo`.
pub fn parse_meminfo(text: &str) -> Option<MachineMemory> {
    let bytes = |key: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    };
    Some(MachineMemory { total_bytes: bytes("MemTotal:")?, free_bytes: bytes("MemAvailable:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read() {
        let text =
            "MemTotal:       24570032 kB\nMemFree:        1000 kB\nMemAvailable:   20000000 kB\n";
        let wanted = MachineMemory { total_bytes: 24_570_032 << 10, free_bytes: 20_000_000 << 10 };
        assert_eq!(parse_meminfo(text), Some(wanted));
        assert_eq!(parse_meminfo("MemTotal: many\n"), None);
    }
}
