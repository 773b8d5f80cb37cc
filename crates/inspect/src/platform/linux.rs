//! Linux: parses routes and ports.

mod network;

use jackalope_fleet::facts::Sections;
use jackalope_fleet::platform::linux::network::net_route;

use super::posix;
use crate::report::NodeReport;

/// Adds the sections that are not facts to a report.
pub(super) fn add_report(sections: &Sections, report: &mut NodeReport) {
    report.routes = network::ip_route(sections.text("ip_route"));
    if report.routes.is_empty() {
        report.routes = net_route(sections.text("net_route"));
    }
    report.firewall = match sections.any_text("firewall").trim() {
        "running" => Some(true),
        "not running" => Some(false),
        _ => None,
    };
    let mut listeners = network::ss(sections.text("ss"));
    listeners.extend(network::net_tcp(sections.any_text("net_tcp")));
    report.listeners = posix::merged(listeners);
    // Most of these tools are normally absent on Linux, so they are not reported.
    report.missing_tools.retain(|tool| tool == "ps");
}
