//! macOS: parses the output of its tools for networks, Thunderbolt, RDMA and power.

mod network;
mod power;
pub(super) mod rdma;
mod thunderbolt;

use jackalope_fleet::facts::Sections;
use jackalope_fleet::platform::macos::{field, page_bytes, pages, system_version};

use super::posix;
use crate::report::{MacReport, NodeReport};

/// Adds the sections that are not facts to a report.
pub(super) fn add_report(sections: &Sections, report: &mut NodeReport) {
    let (version, build) = system_version(sections.text("sw_vers"));
    let hardware_ports = network::hardware_ports(sections.text("hardware_ports"));
    let (product, ports) = thunderbolt::ports(sections.text("thunderbolt"), &hardware_ports);
    let devices = sections.text("ibv_devices");
    report.mac = Some(MacReport {
        model: field(sections.any_text("sysctl"), "hw.model").unwrap_or_default().to_owned(),
        product,
        version,
        build,
        rdma: rdma::switch(sections.get("rdma_ctl")),
        rdma_devices: (!sections.is_missing("ibv_devices"))
            .then(|| rdma::devices(devices, sections.any_text("ibv_devinfo"))),
        thunderbolt: ports,
        hardware_ports,
        bridges: network::bridges(sections.text("ifconfig")),
        wired_bytes: wired_bytes(sections.text("vm_stat")),
        gpu_limit_bytes: field(sections.any_text("sysctl"), "iogpu.wired_limit_mb")
            .and_then(|it| it.parse::<u64>().ok())
            .filter(|it| *it != 0)
            .map(|it| it << 20),
        power: power::power(sections.text("pmset"), sections.text("assertions")),
    });
    report.routes = network::routes(sections.text("netstat_routes"));
    report.firewall = power::firewall(sections.any_text("firewall"));
    let mut listeners = posix::lsof(sections.any_text("lsof"));
    listeners.extend(network::listeners(sections.text("netstat_listen")));
    report.listeners = posix::merged(listeners);
}

/// Returns the wired memory from `vm_stat`: memory that cannot be paged out.
fn wired_bytes(vm_stat: &str) -> Option<u64> {
    Some(pages(vm_stat, "Pages wired down:")? * page_bytes(vm_stat)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wired_memory_is_read() {
        let text = "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n\
            Pages wired down:                        150000.\n";
        assert_eq!(wired_bytes(text), Some(150_000 * 16384));
    }
}
