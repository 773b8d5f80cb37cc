//! Thunderbolt ports and their RDMA devices.

use std::net::Ipv6Addr;

use serde::Serialize;

/// The generation of a Thunderbolt port. RDMA needs Thunderbolt 5.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ThunderboltGeneration {
    /// Thunderbolt 3, 4 or USB4: 40 Gbit/s.
    Four,
    /// Thunderbolt 5: 80 Gbit/s, or 120 one way.
    Five,
}

/// The usual throughput of a cable in one direction, in bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ExpectedSpeed {
    /// Lower end of the usual range.
    pub least_bits_per_s: f64,
    /// Upper end of the usual range.
    pub most_bits_per_s: f64,
}

impl ExpectedSpeed {
    /// Returns true if `bits_per_s` is so low that something must be wrong: less than half of the
    /// lower end.
    pub fn is_missed_by(&self, bits_per_s: f64) -> bool {
        bits_per_s < self.least_bits_per_s / 2.0
    }
}

/// A Mac's own Thunderbolt port.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct ThunderboltPort {
    /// Number of the receptacle in the case: the `2` of `Thunderbolt 2`.
    pub receptacle: u32,
    /// Network interface of the port.
    pub interface: Option<String>,
    /// Domain UUID, which identifies this port to the other end of a cable.
    pub domain_uuid: String,
    /// Domain UUID of the other end, if that is a computer.
    pub peer_uuid: Option<String>,
    /// Name that the attached device reports.
    pub attached: Option<String>,
    /// Speed of the link in bits per second, if something is plugged in.
    pub link_bits_per_s: Option<u64>,
    /// Generation of the port, if known: a connected port reports only the speed of its link.
    pub generation: Option<ThunderboltGeneration>,
}

/// A network port, as `networksetup` names it.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct HardwarePort {
    /// Name, such as `Thunderbolt 2` or `Wi-Fi`.
    pub name: String,
    /// Interface, such as `en3`.
    pub interface: String,
}

/// An RDMA device.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct RdmaDevice {
    /// Name, such as `rdma_en3`.
    pub name: String,
    /// State: `PORT_ACTIVE`, `PORT_DOWN`; `None` if `ibv_devinfo` did not report it.
    pub state: Option<String>,
    /// GIDs, if `ibv_devinfo -v` lists them.
    pub gids: Vec<Ipv6Addr>,
}

impl ThunderboltGeneration {
    /// Returns the generation of a port with this speed.
    pub fn of_speed(bits_per_s: u64) -> ThunderboltGeneration {
        // Thunderbolt 4 and USB4 reach at most 40 Gbit/s.
        if bits_per_s > 40_000_000_000 {
            ThunderboltGeneration::Five
        } else {
            ThunderboltGeneration::Four
        }
    }

    /// Returns the generation of a chip's own ports, from Apple's specifications of the Macs that
    /// have it.
    pub fn of_chip(chip: &str) -> Option<ThunderboltGeneration> {
        const FIVE: [&str; 6] = ["M3 Ultra", "M4 Pro", "M4 Max", "M5 Pro", "M5 Max", "M5 Ultra"];
        const FOUR: [&str; 13] = [
            "M1", "M1 Pro", "M1 Max", "M1 Ultra", "M2", "M2 Pro", "M2 Max", "M2 Ultra", "M3",
            "M3 Pro", "M3 Max", "M4", "M5",
        ];
        let name = chip.strip_prefix("Apple ")?;
        match (FIVE.contains(&name), FOUR.contains(&name)) {
            (true, _) => Some(ThunderboltGeneration::Five),
            (_, true) => Some(ThunderboltGeneration::Four),
            _ => None,
        }
    }

    /// Returns the usual throughput of a cable between two such ports, which is lower than the
    /// nominal 40 or 80 Gbit/s. `None` if the transport is not supported: RDMA needs Thunderbolt 5.
    pub fn expected(self, over_rdma: bool) -> Option<ExpectedSpeed> {
        let usual = |least: f64, most: f64| ExpectedSpeed {
            least_bits_per_s: least * 1e9,
            most_bits_per_s: most * 1e9,
        };
        match (self, over_rdma) {
            // TCP over Thunderbolt is limited by the operating system, not by the cable.
            (_, false) => Some(usual(10.0, 20.0)),
            (ThunderboltGeneration::Five, true) => Some(usual(50.0, 80.0)),
            (ThunderboltGeneration::Four, true) => None,
        }
    }

    /// Returns the name of the generation.
    pub fn name(self) -> &'static str {
        match self {
            ThunderboltGeneration::Four => "Thunderbolt 4",
            ThunderboltGeneration::Five => "Thunderbolt 5",
        }
    }
}

impl RdmaDevice {
    /// Returns true if the cable and the other end are up.
    pub fn is_active(&self) -> bool {
        self.state.as_deref() == Some("PORT_ACTIVE")
    }

    /// Returns the network interface of the same port, such as `en3`.
    pub fn interface(&self) -> &str {
        self.name.strip_prefix("rdma_").unwrap_or(&self.name)
    }

    /// Returns true if the device has an IPv4-mapped GID, which JACCL needs.
    pub fn has_ipv4_gid(&self) -> bool {
        self.gids.iter().any(|gid| gid.to_ipv4_mapped().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cable_is_held_against_what_its_generation_usually_carries() {
        let judge = |generation: ThunderboltGeneration, over_rdma, gbit: f64| {
            generation.expected(over_rdma).map(|it| it.is_missed_by(gbit * 1e9))
        };
        assert_eq!(judge(ThunderboltGeneration::Four, false, 12.0), Some(false));
        assert_eq!(judge(ThunderboltGeneration::Four, false, 4.9), Some(true));
        assert_eq!(judge(ThunderboltGeneration::Five, false, 5.1), Some(false));
        assert_eq!(judge(ThunderboltGeneration::Five, true, 60.0), Some(false));
        assert_eq!(judge(ThunderboltGeneration::Five, true, 20.0), Some(true));
        assert_eq!(judge(ThunderboltGeneration::Four, true, 40.0), None, "there is no RDMA");
    }
}
