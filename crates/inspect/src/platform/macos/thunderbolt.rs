//! Parses `system_profiler SPThunderboltDataType -json`.

use serde_json::Value;

use crate::report::{HardwarePort, ThunderboltGeneration, ThunderboltPort};

/// Returns the product name (`Mac Studio`) and the Mac's own ports in the order of receptacles. A
/// port's interface is the one that `networksetup` calls `Thunderbolt <receptacle>`.
pub(super) fn ports(json: &str, hardware_ports: &[HardwarePort]) -> (String, Vec<ThunderboltPort>) {
    let all: Value = serde_json::from_str(json).unwrap_or_default();
    let buses = all["SPThunderboltDataType"].as_array().map_or(&[][..], Vec::as_slice);
    let product = buses.iter().find_map(|bus| bus["device_name_key"].as_str()).unwrap_or_default();
    let mut ports: Vec<ThunderboltPort> = buses.iter().filter_map(port).collect();
    for port in &mut ports {
        let name = format!("Thunderbolt {}", port.receptacle);
        let hardware = hardware_ports.iter().find(|it| it.name == name);
        port.interface = hardware.map(|it| it.interface.clone());
    }
    ports.sort_by_key(|port| port.receptacle);
    (product.to_owned(), ports)
}

/// Parses one bus, which is one port. A bus without a domain or a receptacle (older or virtual
/// Macs) is skipped.
fn port(bus: &Value) -> Option<ThunderboltPort> {
    let tag = &bus["receptacle_1_tag"];
    let receptacle = tag["receptacle_id_key"].as_str()?.parse().ok()?;
    let domain_uuid = bus["domain_uuid_key"].as_str()?.to_owned();
    let attached = bus["_items"].as_array().map_or(&[][..], Vec::as_slice);
    // A computer has a domain of its own; a dock or a display has none, but may have a computer
    // behind it, which is not a direct cable.
    let peer = attached.iter().find(|it| it["domain_uuid_key"].is_string());
    let name = |it: &Value| it["_name"].as_str().map(str::to_owned);
    let speed = tag["current_speed_key"].as_str().and_then(speed);
    let is_connected = !attached.is_empty()
        || tag["receptacle_status_key"].as_str() == Some("receptacle_connected");
    Some(ThunderboltPort {
        receptacle,
        interface: None,
        domain_uuid,
        peer_uuid: peer.and_then(|it| it["domain_uuid_key"].as_str()).map(str::to_owned),
        attached: peer.or(attached.first()).and_then(name),
        link_bits_per_s: speed.filter(|_| is_connected),
        // A connected port reports its link: a fast link proves Thunderbolt 5, a slow one proves
        // nothing.
        generation: speed
            .map(ThunderboltGeneration::of_speed)
            .filter(|it| !is_connected || *it == ThunderboltGeneration::Five),
    })
}

/// Parses a speed, such as `80 Gb/s` or `Up to 120 Gb/s`, into bits per second.
fn speed(text: &str) -> Option<u64> {
    let number = text.strip_suffix("Gb/s")?.trim().rsplit(' ').next()?;
    Some(number.parse::<u64>().ok()? * 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUDIO: &str = include_str!("../../../tests/recorded/thunderbolt-studio.json");
    const BOOK: &str = include_str!("../../../tests/recorded/thunderbolt-macbook.json");
    const PORTS: &str = include_str!("../../../tests/recorded/hardware-ports-studio.txt");

    #[test]
    fn ports_know_their_peer_and_a_drive_is_none() {
        let hardware = super::super::network::hardware_ports(PORTS);
        let (product, found) = ports(STUDIO, &hardware);
        assert_eq!(product, "Mac Studio");
        let receptacles: Vec<u32> = found.iter().map(|it| it.receptacle).collect();
        assert_eq!(receptacles, [1, 2, 3, 4, 5, 6]);
        assert_eq!(found[1].interface.as_deref(), Some("en3"));
        assert_eq!(found[1].attached.as_deref(), Some("MacBook Pro"));
        assert_eq!(found[1].link_bits_per_s, Some(80_000_000_000));
        let (_, book) = ports(BOOK, &[]);
        let cabled = book.iter().find(|it| it.peer_uuid.is_some()).unwrap();
        assert_eq!(cabled.peer_uuid.as_ref(), Some(&found[1].domain_uuid));
        assert_eq!(found[1].peer_uuid.as_ref(), Some(&cabled.domain_uuid));
        assert_eq!(
            (&found[3].peer_uuid, found[3].attached.as_deref()),
            (&None, Some("Envoy Ultra"))
        );
        assert!(found.iter().all(|it| it.generation == Some(ThunderboltGeneration::Five)));
        assert_eq!(found[0].link_bits_per_s, None);
    }

    #[test]
    fn a_slow_link_does_not_make_a_port_slow() {
        let (_, found) = ports(BOOK, &[]);
        let dock = found.iter().find(|it| it.receptacle == 3).unwrap();
        assert_eq!(dock.link_bits_per_s, Some(40_000_000_000));
        assert_eq!(dock.generation, None);
        let idle = BOOK.replace("Up to 120", "Up to 40");
        let (_, found) = ports(&idle, &[]);
        let idle = found.iter().find(|it| it.link_bits_per_s.is_none()).unwrap();
        assert_eq!(idle.generation, Some(ThunderboltGeneration::Four));
    }

    #[test]
    fn what_is_no_report_has_no_ports() {
        assert_eq!(ports("", &[]), (String::new(), Vec::new()));
        assert_eq!(ports("{\"SPThunderboltDataType\": []}", &[]).1, []);
    }
}
