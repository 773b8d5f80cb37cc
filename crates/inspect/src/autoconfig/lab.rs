//! Simulated Macs: each prints what the tools of a real one print, in the formats recorded in
//! `tests/recorded`, so that tests start from text as in production.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::time::Duration;

use jackalope_fleet::shell::{Output, Shell, ShellError};
use serde_json::{Value, json};

use super::ReportedMachine;
use crate::probe;
use crate::report::NodeReport;

/// Some Macs and their cables.
#[derive(Debug, Default)]
pub(crate) struct Lab {
    pub(crate) macs: Vec<Mac>,
    /// `host: command` of everything that was run, except for probes.
    pub(crate) ran: Mutex<Vec<String>>,
}

/// A simulated Mac.
#[derive(Clone, Debug)]
pub(crate) struct Mac {
    pub(crate) name: String,
    pub(crate) product: &'static str,
    pub(crate) chip: &'static str,
    pub(crate) version: &'static str,
    pub(crate) rdma: &'static str,
    pub(crate) num_ports: u32,
    /// Number of the interface of port 1.
    pub(crate) first_interface: u32,
    /// Fastest link in Gbit/s.
    pub(crate) gbit_per_s: u32,
    pub(crate) plugs: BTreeMap<u32, Plug>,
    /// Interface, address, prefix length.
    pub(crate) addrs: Vec<(String, String, u8)>,
    /// Members of bridge0.
    pub(crate) bridged: Vec<String>,
    /// Lines for `netstat -rn`.
    pub(crate) routes: Vec<String>,
    /// Sections with other content than the usual one.
    pub(crate) tools: BTreeMap<&'static str, String>,
}

/// The device in a port.
#[derive(Clone, Debug)]
pub(crate) enum Plug {
    Mac { name: String, domain: String, gbit_per_s: u32 },
    Display,
}

impl Lab {
    /// Creates `num_macs` Mac Studios of the newest generation, with all ports in bridge0, which is
    /// the default of macOS.
    pub(crate) fn studios(num_macs: usize) -> Lab {
        let macs = (0..num_macs).map(Mac::studio).collect();
        Lab { macs, ran: Mutex::default() }
    }

    /// Connects two ports by a cable.
    pub(crate) fn cable(mut self, (a, a_port): (usize, u32), (b, b_port): (usize, u32)) -> Lab {
        let gbit_per_s = self.macs[a].gbit_per_s.min(self.macs[b].gbit_per_s).min(80);
        for (own, own_port, other, other_port) in [(a, a_port, b, b_port), (b, b_port, a, a_port)] {
            let domain = domain(other, other_port);
            let name = self.macs[other].product.to_owned();
            self.macs[own].plugs.insert(own_port, Plug::Mac { name, domain, gbit_per_s });
        }
        self
    }

    /// Returns the reports of all machines.
    pub(crate) fn reports(&self) -> Vec<(String, NodeReport)> {
        let report = |mac: &Mac| {
            let report = probe::report(self, &mac.name, Duration::from_secs(1));
            (mac.name.clone(), report.unwrap())
        };
        self.macs.iter().map(report).collect()
    }

    fn mac(&self, host: &str) -> (usize, &Mac) {
        self.macs.iter().enumerate().find(|(_, mac)| mac.name == host).unwrap()
    }
}

/// Converts reports to the form that a plan expects.
pub(crate) fn members(reports: &[(String, NodeReport)]) -> Vec<ReportedMachine<'_>> {
    reports.iter().map(|(name, report)| ReportedMachine { name, report }).collect()
}

impl Shell for Lab {
    fn run(
        &self,
        host: &str,
        script: &str,
        _input: &[u8],
        _timeout: Duration,
    ) -> Result<Output, ShellError> {
        let (host_idx, mac) = self.mac(host);
        if script.contains("say sw_vers") {
            let stdout = mac.sections(host_idx);
            return Ok(Output { stdout, ..Output::default() });
        }
        self.ran.lock().unwrap().push(format!("{host}: {script}"));
        Ok(Output::default())
    }
}

fn domain(host_idx: usize, port: u32) -> String {
    format!("{host_idx:08X}-0000-4000-8000-{port:012X}")
}

impl Mac {
    fn studio(idx: usize) -> Mac {
        Mac {
            name: format!("mac{}", idx + 1),
            product: "Mac Studio",
            chip: "Apple M3 Ultra",
            version: "26.3",
            rdma: "enabled",
            num_ports: 6,
            first_interface: 2,
            gbit_per_s: 120,
            plugs: BTreeMap::new(),
            addrs: vec![("en0".to_owned(), format!("192.168.1.{}", 11 + idx), 24)],
            bridged: (2..8).map(|it| format!("en{it}")).collect(),
            routes: Vec::new(),
            tools: BTreeMap::new(),
        }
    }

    /// Turns it into a Mac mini with Thunderbolt 4.
    pub(crate) fn into_mini(self) -> Mac {
        let bridged = (2..5).map(|it| format!("en{it}")).collect();
        Mac { product: "Mac mini", chip: "Apple M4", num_ports: 3, gbit_per_s: 40, bridged, ..self }
    }

    fn interface(&self, port: u32) -> String {
        format!("en{}", self.first_interface + port - 1)
    }

    fn sections(&self, host_idx: usize) -> String {
        let mut all: BTreeMap<&str, String> = BTreeMap::from([
            ("uname", "Darwin 25.3.0 arm64".to_owned()),
            ("hostname", format!("{}.local", self.name)),
            ("sw_vers", format!("ProductName:\t\tmacOS\nProductVersion:\t\t{}\nBuildVersion:\t\t25D125", self.version)),
            ("sysctl", format!("hw.model: Mac15,14\nmachdep.cpu.brand_string: {}\nhw.memsize: 137438953472\nhw.logicalcpu: 28\niogpu.wired_limit_mb: 0", self.chip)),
            ("vm_stat", VM_STAT.to_owned()),
            ("ifconfig", self.ifconfig()),
            ("clock", std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs().to_string()),
            ("thunderbolt", self.thunderbolt(host_idx).to_string()),
            ("hardware_ports", self.hardware_ports()),
            ("rdma_ctl", self.rdma.to_owned()),
            ("ibv_devices", self.ibv_devices()),
            ("ibv_devinfo", self.ibv_devinfo()),
            ("firewall", "Firewall is disabled. (State = 0)".to_owned()),
            ("pmset", " sleep                0\n displaysleep         0".to_owned()),
            ("assertions", String::new()),
            ("netstat_routes", self.netstat()),
            ("disk", "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/disk3s5 971350180 1 645678901 1% /".to_owned()),
        ]);
        for (name, text) in &self.tools {
            all.insert(name, text.clone());
        }
        let mut text = "a banner of the server\n".to_owned();
        for (name, said) in all {
            write!(text, "\n@@section {name}\n{said}\n\n@@status 0\n").unwrap();
        }
        text
    }

    fn thunderbolt(&self, host_idx: usize) -> Value {
        let bus = |port: u32| {
            let plug = self.plugs.get(&port);
            let speed = match plug {
                Some(Plug::Mac { gbit_per_s, .. }) => format!("{gbit_per_s} Gb/s"),
                Some(Plug::Display) => "40 Gb/s".to_owned(),
                None => format!("Up to {} Gb/s", self.gbit_per_s),
            };
            let status = match plug {
                Some(_) => "receptacle_connected",
                None => "receptacle_no_devices_connected",
            };
            let mut bus = json!({
                "_name": format!("thunderboltusb4_bus_{}", port - 1),
                "device_name_key": self.product,
                "domain_uuid_key": domain(host_idx, port),
                "receptacle_1_tag": {
                    "current_speed_key": speed,
                    "receptacle_id_key": port.to_string(),
                    "receptacle_status_key": status,
                },
                "route_string_key": "0",
            });
            match plug {
                Some(Plug::Mac { name, domain, .. }) => {
                    bus["_items"] = json!([{"_name": name, "domain_uuid_key": domain}]);
                }
                Some(Plug::Display) => {
                    bus["_items"] = json!([{"_name": "Studio Display", "mode_key": "usb_four"}]);
                }
                None => {}
            }
            bus
        };
        // The system lists the last bus first.
        let buses: Vec<Value> = (1..=self.num_ports).rev().map(bus).collect();
        json!({ "SPThunderboltDataType": buses })
    }

    fn hardware_ports(&self) -> String {
        let mut text = "\nHardware Port: Ethernet\nDevice: en0\n\n".to_owned();
        for port in 1..=self.num_ports {
            let interface = self.interface(port);
            write!(text, "Hardware Port: Thunderbolt {port}\nDevice: {interface}\n\n").unwrap();
        }
        text
    }

    fn ifconfig(&self) -> String {
        let mut text = String::new();
        let ports = (1..=self.num_ports).map(|port| self.interface(port));
        for interface in ["en0".to_owned()].into_iter().chain(ports) {
            writeln!(text, "{interface}: flags=8863<UP,RUNNING> mtu 1500").unwrap();
            for (_, ip, prefix_len) in self.addrs.iter().filter(|it| it.0 == interface) {
                let mask = u32::MAX << (32 - u32::from(*prefix_len));
                writeln!(text, "\tinet {ip} netmask {mask:#010x} broadcast 255.255.255.255")
                    .unwrap();
            }
        }
        if !self.bridged.is_empty() {
            writeln!(text, "bridge0: flags=8863<UP,RUNNING> mtu 1500").unwrap();
            for member in &self.bridged {
                writeln!(text, "\tmember: {member} flags=3<LEARNING,DISCOVER>").unwrap();
            }
        }
        text
    }

    fn netstat(&self) -> String {
        let own = [
            "default            192.168.1.1        UGScg                 en0       ",
            "192.168.1          link#15            UCS                   en0      !",
        ];
        let lines = own.into_iter().chain(self.routes.iter().map(String::as_str));
        format!("Routing tables\n\nInternet:\n{}\n", lines.collect::<Vec<&str>>().join("\n"))
    }

    fn devices(&self) -> impl Iterator<Item = (u32, String)> {
        let has_rdma = self.rdma == "enabled" && 40 < self.gbit_per_s;
        let ports = (1..=self.num_ports).filter(move |_| has_rdma);
        ports.map(|port| (port, format!("rdma_{}", self.interface(port))))
    }

    fn ibv_devices(&self) -> String {
        let mut text = "    device          \t   node GUID\n    ------          \t---\n".to_owned();
        for (port, name) in self.devices() {
            writeln!(text, "    {name}        \t{port:016x}").unwrap();
        }
        text
    }

    fn ibv_devinfo(&self) -> String {
        let mut text = String::new();
        for (port, name) in self.devices() {
            let state = match self.plugs.get(&port) {
                Some(Plug::Mac { .. }) => "PORT_ACTIVE (4)",
                _ => "PORT_DOWN (1)",
            };
            writeln!(text, "hca_id:\t{name}\n\t\tport:\t1\n\t\t\tstate:\t\t\t{state}").unwrap();
            writeln!(text, "\t\t\tGID[  0]:\t\tfe80::ff:fe00:{port}").unwrap();
            let own = self.addrs.iter().find(|it| it.0 == self.interface(port));
            if let Some((_, ip, _)) = own {
                writeln!(text, "\t\t\tGID[  1]:\t\t::ffff:{ip}").unwrap();
            }
        }
        text
    }
}

const VM_STAT: &str = "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n\
    Pages free:                             5000000.\nPages inactive:                         1000000.\n\
    Pages speculative:                        10000.\nPages wired down:                        150000.\n";
