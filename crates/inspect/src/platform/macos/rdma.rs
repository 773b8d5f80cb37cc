//! Parses `rdma_ctl`, `ibv_devices` and `ibv_devinfo` of macOS 26.2 and later.

use jackalope_fleet::facts::{Section, ToolEnding};

use crate::report::{RdmaDevice, RdmaSwitch};

/// Parses `rdma_ctl status`, which is only known to print `enabled` or `disabled`.
pub(super) fn switch(section: Option<&Section>) -> RdmaSwitch {
    let Some(section) = section else { return RdmaSwitch::Unknown };
    let text = section.text.to_lowercase();
    match &section.ending {
        ToolEnding::Missing(_) => RdmaSwitch::Missing,
        ToolEnding::Status(0) if text.contains("disabled") || text.contains("not enabled") => {
            RdmaSwitch::Disabled
        }
        ToolEnding::Status(0) if text.contains("enabled") => RdmaSwitch::Enabled,
        _ => RdmaSwitch::Unknown,
    }
}

/// Parses `ibv_devices` and `ibv_devinfo -v`. Includes devices that only one of them lists.
pub(in crate::platform) fn devices(ibv_devices: &str, ibv_devinfo: &str) -> Vec<RdmaDevice> {
    let names = ibv_devices.lines().filter_map(|line| line.split_whitespace().next());
    let names = names.filter(|name| name.starts_with("rdma_"));
    let mut devices: Vec<RdmaDevice> = names.map(named).collect();
    let mut current = None;
    for line in ibv_devinfo.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let (key, value) = (key.trim(), value.trim());
        if key == "hca_id" {
            let position = devices.iter().position(|it| it.name == value);
            current = Some(position.unwrap_or_else(|| {
                devices.push(named(value));
                devices.len() - 1
            }));
        }
        let Some(device) = current.and_then(|at: usize| devices.get_mut(at)) else { continue };
        match key {
            "state" => device.state = value.split_whitespace().next().map(str::to_owned),
            _ if key.starts_with("GID[") => {
                // On Linux, the type of the GID follows after a comma.
                let gid = value.split(',').next().unwrap_or_default().trim();
                device.gids.extend(gid.parse::<std::net::Ipv6Addr>());
            }
            _ => {}
        }
    }
    devices
}

fn named(name: &str) -> RdmaDevice {
    RdmaDevice { name: name.to_owned(), ..RdmaDevice::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: &str = include_str!("../../../tests/recorded/ibv-devices.txt");
    const EMPTY: &str = include_str!("../../../tests/recorded/ibv-devices-empty.txt");
    const DEVINFO: &str = include_str!("../../../tests/recorded/ibv-devinfo-verbose.txt");

    #[test]
    fn devices_have_states_and_addresses() {
        let found = devices(DEVICES, DEVINFO);
        let names: Vec<&str> = found.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["rdma_en1", "rdma_en6", "rdma_en2"]);
        let active: Vec<bool> = found.iter().map(RdmaDevice::is_active).collect();
        assert_eq!(active, [false, true, false]);
        assert_eq!(found[1].interface(), "en6");
        assert!(found[1].has_ipv4_gid());
        assert_eq!(found[0].gids.len(), 2);
        assert!(!found[0].has_ipv4_gid());
    }

    #[test]
    fn a_machine_without_devices_prints_a_heading_only() {
        assert_eq!(devices(EMPTY, ""), []);
        assert_eq!(devices("No IB devices found", "No IB devices found"), []);
        assert_eq!(devices("", "hca_id: rdma_en9\n\t\tstate: PORT_ACTIVE (4)").len(), 1);
    }

    #[test]
    fn the_switch_is_on_off_or_missing() {
        let section = |text: &str, ending| Section { text: text.to_owned(), ending };
        let check = |text, ending, wanted| assert_eq!(switch(Some(&section(text, ending))), wanted);
        check("enabled", ToolEnding::Status(0), RdmaSwitch::Enabled);
        check("disabled", ToolEnding::Status(0), RdmaSwitch::Disabled);
        check("RDMA is enabled", ToolEnding::Status(0), RdmaSwitch::Enabled);
        check("", ToolEnding::Missing("rdma_ctl".to_owned()), RdmaSwitch::Missing);
        check("", ToolEnding::Stuck, RdmaSwitch::Unknown);
    }
}
