//! Memory bandwidth of Apple's chips, as Apple states it.

/// Gigabytes per second by chip, from Apple's announcements. If a chip was sold with two
/// bandwidths, the lower one is listed and a comment states the other.
const CHIPS: [(&str, u64); 18] = [
    ("Apple M1 Ultra", 800),
    ("Apple M1 Max", 400),
    ("Apple M1 Pro", 200),
    ("Apple M1", 68),
    ("Apple M2 Ultra", 800),
    ("Apple M2 Max", 400),
    ("Apple M2 Pro", 200),
    ("Apple M2", 100),
    ("Apple M3 Ultra", 819),
    // 400 with 16 CPU cores.
    ("Apple M3 Max", 300),
    ("Apple M3 Pro", 150),
    ("Apple M3", 100),
    // 546 with 16 CPU cores.
    ("Apple M4 Max", 410),
    ("Apple M4 Pro", 273),
    ("Apple M4", 120),
    // 614 with the 40-core GPU.
    ("Apple M5 Max", 460),
    ("Apple M5 Pro", 307),
    ("Apple M5", 153),
];

/// Returns the memory bandwidth in bytes per second, if the chip is known.
pub fn memory_bytes_per_s(chip: &str, cores: u32) -> Option<u64> {
    let gb_per_s = match (chip, cores) {
        ("Apple M3 Max", 16) => 400,
        ("Apple M4 Max", 16) => 546,
        _ => CHIPS.iter().find(|(name, _)| *name == chip)?.1,
    };
    Some(gb_per_s * 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chips_are_known_by_their_whole_name() {
        assert_eq!(memory_bytes_per_s("Apple M2", 8), Some(100_000_000_000));
        assert_eq!(memory_bytes_per_s("Apple M4 Max", 14), Some(410_000_000_000));
        assert_eq!(memory_bytes_per_s("Apple M4 Max", 16), Some(546_000_000_000));
        assert_eq!(memory_bytes_per_s("Apple M3 Ultra", 32), Some(819_000_000_000));
        assert_eq!(memory_bytes_per_s("Apple M4 Nano", 16), None);
        assert_eq!(memory_bytes_per_s("Intel(R) Xeon(R)", 16), None);
    }
}
