//! Problems with RDMA over Thunderbolt, which JACCL needs.

use super::{Entry, entries};
use crate::doctor::Severity;

entries! { RDMA:
    /// A machine is not a Mac.
    RDMA_NOT_A_MAC = Entry {
        code: "rdma-not-a-mac",
        severity: Severity::Error,
        title: "JACCL needs Macs",
        explain: "RDMA over Thunderbolt is a part of macOS; other systems use TCP.",
        type_this: &["use `--backend tcp`"],
        signs: &[],
        origin: "TOP-07 TOP-20",
    };
    /// The version of macOS is too old for RDMA.
    MACOS_TOO_OLD = Entry {
        code: "macos-too-old",
        severity: Severity::Error,
        title: "this macOS has no RDMA",
        explain: "RDMA over Thunderbolt came with macOS 26.2.",
        type_this: &["on {node}: `softwareupdate --list`, then install macOS 26.3 or later", "until then use `--backend tcp`"],
        signs: &[],
        origin: "TOP-08",
    };
    /// The version of macOS uses small RDMA frames.
    MACOS_SMALL_FRAMES = Entry {
        code: "macos-small-frames",
        severity: Severity::Warn,
        title: "macOS before 26.3 sends RDMA in frames of 4 KB",
        explain: "Large sums are then cut into thousands of pieces: slow, and known to fail with errno 12 after some steps.",
        type_this: &["on {node}: install macOS 26.3 or later", "until then `--backend tcp` is the safe choice"],
        signs: &[],
        origin: "TOP-08",
    };
    /// The machine has Thunderbolt 4 only.
    THUNDERBOLT_4 = Entry {
        code: "thunderbolt-4",
        severity: Severity::Error,
        title: "Thunderbolt 4 has no RDMA",
        explain: "RDMA needs Thunderbolt 5: an M4 Pro or Max, an M3 Ultra, an M5 Pro or Max. `rdma_ctl enable` succeeds on other Macs too but changes nothing: the settings are not wrong, and Recovery will not help.",
        type_this: &["use `--backend tcp` over the same cable: 40 Gbit/s is plenty for it"],
        signs: &[],
        origin: "TOP-07",
    };
    /// A Thunderbolt 5 port runs at the speed of Thunderbolt 4.
    SLOW_LINK = Entry {
        code: "slow-link",
        severity: Severity::Warn,
        title: "a Thunderbolt 5 port runs at 40 Gbit/s",
        explain: "Both ends can do 80: the cable between them cannot.",
        type_this: &["replace the cable in port {receptacle} of {node} by one marked with a 5 (at most 1 m without electronics)"],
        signs: &[],
        origin: "TOP-07 TOP-23 TS-01",
    };
    /// RDMA is switched off.
    RDMA_DISABLED = Entry {
        code: "rdma-disabled",
        severity: Severity::Error,
        title: "RDMA is switched off",
        explain: "It can be switched on in Recovery only, once per Mac. Ports become active when both ends have it on.",
        type_this: &[
            "on {node}: shut down, then hold the power button until `Loading startup options` appears",
            "choose Options, Continue, then Utilities, Terminal",
            "rdma_ctl enable",
            "restart, then `rdma_ctl status`",
        ],
        signs: &["does not seem to have RDMA enabled"],
        origin: "TOP-09 TS-01 TS-20 TS-22",
    };
    /// `rdma_ctl status` reports neither enabled nor disabled.
    RDMA_UNKNOWN = Entry {
        code: "rdma-unknown",
        severity: Severity::Warn,
        title: "`rdma_ctl status` gives no answer",
        explain: "Its output is neither enabled nor disabled.",
        type_this: &["on {node}: `rdma_ctl status`"],
        signs: &[],
        origin: "TOP-09",
    };
    /// There are no RDMA devices although RDMA is on.
    RDMA_NO_DEVICES = Entry {
        code: "rdma-no-devices",
        severity: Severity::Error,
        title: "there are no RDMA devices",
        explain: "RDMA is on, but `ibv_devices` lists none. The Mac was not restarted since then, or it has Thunderbolt 4 or older.",
        type_this: &["restart {node}, then `ibv_devices`", "use `--backend tcp` if this does not help"],
        signs: &["No IB devices found"],
        origin: "TOP-10 TS-22",
    };
    /// The hostfile names a device that does not exist.
    RDMA_DEVICE_MISSING = Entry {
        code: "rdma-device-missing",
        severity: Severity::Error,
        title: "the hostfile names a device that does not exist",
        explain: "Devices are named after the network interface of their port, which depends on the Mac's model and on the port. Moving a cable to another port changes the device.",
        type_this: &["on {node}: `ibv_devices`", "jackalope autoconfig --hosts {hosts} --backend jaccl --out hosts.json"],
        signs: &["[jaccl] Could not find device", "[jaccl] Could not open device"],
        origin: "CM-04 TOP-10 HF-13 HF-14",
    };
    /// An RDMA port is down.
    RDMA_PORT_DOWN = Entry {
        code: "rdma-port-down",
        severity: Severity::Error,
        title: "an RDMA port is down",
        explain: "A port is active only while a cable leads to another Mac that is awake and has RDMA on too. Sleep takes ports down, and some come back only when the cable is connected again.",
        type_this: &[
            "on the Mac at the other end: `rdma_ctl status`, and wake its display",
            "disconnect the cable of {interface} and connect it again",
            "on {node}: `ibv_devinfo -d {device}` should say PORT_ACTIVE",
            "use another port or cable; last, restart both Macs",
        ],
        signs: &["PORT_DOWN"],
        origin: "CM-04 TS-01 TS-26 TS-27",
    };
    /// A device leads to another machine than the hostfile says.
    RDMA_WRONG_CABLE = Entry {
        code: "rdma-wrong-cable",
        severity: Severity::Error,
        title: "a device leads to another machine than the hostfile says",
        explain: "In the hostfile, entry j of a host is its device for host j. The cable of this device ends at another machine, so both ends would wait for each other.",
        type_this: &["jackalope autoconfig --hosts {hosts} --backend jaccl --out hosts.json"],
        signs: &[],
        origin: "HF-13 TOP-10",
    };
    /// An RDMA port has no IPv4-mapped GID.
    RDMA_NO_IPV4_GID = Entry {
        code: "rdma-no-ipv4-gid",
        severity: Severity::Error,
        title: "an RDMA port has no IPv4 address",
        explain: "JACCL identifies a port by its IPv4 address (an IPv4-mapped GID), which exists only while the network interface of the same port has one. The address is lost at a reboot, and for minutes after a cable is connected.",
        type_this: &["jackalope autoconfig --hosts {hosts} --dry-run   (shows the addresses it would assign)", "or by hand on {node}: `sudo ifconfig {interface} inet 10.254.0.1 netmask 255.255.255.252 up`"],
        signs: &["No IPv4-mapped GID"],
        origin: "DI-11",
    };
    /// A cable is in the port next to Ethernet, which has no RDMA.
    STUDIO_PORT = Entry {
        code: "studio-port",
        severity: Severity::Error,
        title: "this port of a Mac Studio has no RDMA",
        explain: "The Thunderbolt port next to Ethernet (en2) carries data and displays but no RDMA.",
        type_this: &["move the cable to another port of {node}, then `jackalope autoconfig` again"],
        signs: &[],
        origin: "TOP-11 TS-17",
    };
}
