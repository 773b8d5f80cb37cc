//! Thunderbolt ports and the RDMA devices on them.

use std::net::Ipv6Addr;

use serde::Serialize;

/// How fast a Thunderbolt port is. RDMA needs the fifth.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Generation {
    /// Thunderbolt 3, 4 or USB4: 40 Gbit/s.
    Four,
    /// Thunderbolt 5: 80 Gbit/s, or 120 one way.
    Five,
}

/// What a cable usually carries, in bits per second, one way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ExpectedSpeed {
    /// The lower end of what is usual.
    pub least_bits_per_s: f64,
    /// The upper end.
    pub most_bits_per_s: f64,
}

impl ExpectedSpeed {
    /// True if `bits_per_s` is so little that something must be wrong: less than half of what is usual.
    pub fn is_missed_by(&self, bits_per_s: f64) -> bool {
        bits_per_s < self.least_bits_per_s / 2.0
    }
}

/// A Mac's own Thunderbolt port.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct ThunderboltPort {
    /// Number of the socket in the case: the `2` of `Thunderbolt 2`.
    pub receptacle: u32,
    /// Its network interface.
    pub interface: Option<String>,
    /// Names this port to the other end of a cable.
    pub domain_uuid: String,
    /// The other end, if that is a computer.
    pub peer_uuid: Option<String>,
    /// What is plugged in, in its own words.
    pub attached: Option<String>,
    /// Speed of the link in bits per second, if something is plugged in.
    pub link_bits_per_s: Option<u64>,
    /// What the port can do, as far as it tells: a connected port only tells of its link.
    pub generation: Option<Generation>,
}

/// A network port, as `networksetup` names it.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct HardwarePort {
    /// `Thunderbolt 2`, `Wi-Fi`.
    pub name: String,
    /// `en3`.
    pub interface: String,
}

/// An RDMA device.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct RdmaDevice {
    /// `rdma_en3`.
    pub name: String,
    /// `PORT_ACTIVE`, `PORT_DOWN`; `None` where `ibv_devinfo` did not tell.
    pub state: Option<String>,
    /// Its addresses, as far as `ibv_devinfo -v` tells.
    pub gids: Vec<Ipv6Addr>,
}

impl Generation {
    /// What a port is that offers so many bits per second.
    pub fn of_speed(bits_per_s: u64) -> Generation {
        // Thunderbolt 4 and USB4 end at 40 Gbit/s.
        if bits_per_s > 40_000_000_000 { Generation::Five } else { Generation::Four }
    }

    /// What a chip's own ports are, from Apple's specifications of the Macs that have it.
    pub fn of_chip(chip: &str) -> Option<Generation> {
        const FIVE: [&str; 6] = ["M3 Ultra", "M4 Pro", "M4 Max", "M5 Pro", "M5 Max", "M5 Ultra"];
        const FOUR: [&str; 13] = [
            "M1", "M1 Pro", "M1 Max", "M1 Ultra", "M2", "M2 Pro", "M2 Max", "M2 Ultra", "M3",
            "M3 Pro", "M3 Max", "M4", "M5",
        ];
        let name = chip.strip_prefix("Apple ")?;
        match (FIVE.contains(&name), FOUR.contains(&name)) {
            (true, _) => Some(Generation::Five),
            (_, true) => Some(Generation::Four),
            _ => None,
        }
    }

    /// What a cable between two such ports carries, beside what it could: 40 Gbit/s, or 80. None where
    /// there is no such transport: RDMA needs the fifth.
    pub fn expected(self, over_rdma: bool) -> Option<ExpectedSpeed> {
        let usual = |least: f64, most: f64| ExpectedSpeed {
            least_bits_per_s: least * 1e9,
            most_bits_per_s: most * 1e9,
        };
        match (self, over_rdma) {
            // TCP over Thunderbolt's network interfaces is bound by the system, not by the cable.
            (_, false) => Some(usual(10.0, 20.0)),
            (Generation::Five, true) => Some(usual(50.0, 80.0)),
            (Generation::Four, true) => None,
        }
    }

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Generation::Four => "Thunderbolt 4",
            Generation::Five => "Thunderbolt 5",
        }
    }
}

impl RdmaDevice {
    /// True if the cable and the other end are up.
    pub fn is_active(&self) -> bool {
        self.state.as_deref() == Some("PORT_ACTIVE")
    }

    /// `en3`, the network interface of the same port.
    pub fn interface(&self) -> &str {
        self.name.strip_prefix("rdma_").unwrap_or(&self.name)
    }

    /// True if it has an address of the kind that JACCL looks for.
    pub fn has_ipv4_gid(&self) -> bool {
        self.gids.iter().any(|gid| gid.to_ipv4_mapped().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cable_is_held_against_what_its_generation_usually_carries() {
        let judge = |generation: Generation, over_rdma, gbit: f64| {
            generation.expected(over_rdma).map(|it| it.is_missed_by(gbit * 1e9))
        };
        assert_eq!(judge(Generation::Four, false, 12.0), Some(false));
        assert_eq!(judge(Generation::Four, false, 4.9), Some(true));
        assert_eq!(judge(Generation::Five, false, 5.1), Some(false));
        assert_eq!(judge(Generation::Five, true, 60.0), Some(false));
        assert_eq!(judge(Generation::Five, true, 20.0), Some(true));
        assert_eq!(judge(Generation::Four, true, 40.0), None, "there is no RDMA");
    }
}
