//! Clusters with one fault each.

use std::net::IpAddr;

use jackalope_fleet::hostfile::Hostfile;
use jackalope_fleet::shell::{ShellError, ShellErrorKind};

use crate::autoconfig::lab::{Lab, Plug, members};
use crate::autoconfig::{Over, Plan};
use crate::doctor::{Examination, ExaminedNode, Finding, Ping, Severity, examine};
use crate::probe::{Echo, ModelFile};
use crate::report::{HttpAnswer, ListeningPort, OwnProgram, Process, ProgramKind};

/// A cluster, its hostfile, and the reports of its machines.
struct Case {
    lab: Lab,
    hostfile: Hostfile,
    nodes: Vec<ExaminedNode>,
    model: Option<&'static str>,
    here: Vec<Ping>,
    broken_links: Vec<String>,
}

impl Case {
    /// Two Mac Studios with correct cables and configuration.
    fn healthy() -> Case {
        let mut lab = Lab::studios(2).cable((0, 2), (1, 3));
        for (mac, (interface, ip)) in
            lab.macs.iter_mut().zip([("en3", "10.254.0.1"), ("en4", "10.254.0.2")])
        {
            mac.addrs.push((interface.to_owned(), ip.to_owned(), 30));
            mac.bridged.retain(|it| it != interface);
        }
        let hostfile = {
            let reports = lab.reports();
            Plan::new(&members(&reports), Over::Thunderbolt, None).unwrap().hostfile
        };
        let mut case = Case {
            lab,
            hostfile,
            nodes: Vec::new(),
            model: None,
            here: Vec::new(),
            broken_links: Vec::new(),
        };
        case.look();
        case
    }

    /// Probes the machines again.
    fn look(&mut self) {
        let node = |(name, report)| ExaminedNode {
            name,
            report: Ok(report),
            model: None,
            echoes: Vec::new(),
        };
        self.nodes = self.lab.reports().into_iter().map(node).collect();
    }

    fn findings(&self) -> Vec<Finding> {
        let Case { hostfile, nodes, model, here, broken_links, .. } = self;
        let all = examine(&Examination {
            hostfile: Some(hostfile),
            nodes,
            model: *model,
            here,
            broken_links,
        });
        let blanks = all.iter().flat_map(|it| &it.type_this).filter(|line| line.contains('{'));
        assert_eq!(blanks.count(), 0, "something is left to fill in: {all:#?}");
        all
    }

    /// Returns the findings above a note, as `node code`.
    fn problems(&self) -> Vec<String> {
        let all = self.findings().into_iter().filter(|it| Severity::Note < it.severity);
        all.map(|it| format!("{} {}", it.node.unwrap_or("all".to_owned()), it.code)).collect()
    }
}

#[track_caller]
fn check(change: impl FnOnce(&mut Case), wanted: &[&str]) {
    let mut case = Case::healthy();
    change(&mut case);
    assert_eq!(case.problems(), wanted, "{:#?}", case.findings());
}

/// Changes the cluster and probes the machines again.
#[track_caller]
fn check_lab(change: impl FnOnce(&mut Lab), wanted: &[&str]) {
    check(
        |case| {
            change(&mut case.lab);
            case.look();
        },
        wanted,
    );
}

#[test]
fn a_healthy_cluster_has_no_problems_and_says_what_was_looked_at() {
    check(|_| {}, &[]);
    let shown: Vec<String> = Case::healthy()
        .findings()
        .into_iter()
        .map(|it| {
            format!("{:<7} {} {}: {}", it.severity, it.node.unwrap_or_default(), it.about, it.found)
        })
        .collect();
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn every_way_ssh_fails_has_a_name() {
    for (kind, code) in [
        (ShellErrorKind::NoSsh, "ssh-missing"),
        (ShellErrorKind::UnknownName, "ssh-unknown-name"),
        (ShellErrorKind::HostKey, "ssh-host-key"),
        (ShellErrorKind::Refused, "ssh-refused"),
        (ShellErrorKind::NoServer, "ssh-no-server"),
        (ShellErrorKind::NoRoute, "ssh-no-route"),
        (ShellErrorKind::Timeout, "ssh-timeout"),
        (ShellErrorKind::Broken, "ssh-broken"),
    ] {
        let mut case = Case::healthy();
        case.nodes[1].report =
            Err(ShellError { host: "mac2".to_owned(), kind, detail: Some("words".to_owned()) });
        assert_eq!(case.problems(), [format!("mac2 {code}")]);
        let finding = case.findings().into_iter().find(|it| it.code == code).unwrap();
        assert!(finding.found.ends_with("words") && !finding.type_this.is_empty(), "{finding:?}");
        assert!(!finding.type_this.iter().any(|it| it.contains("{node}")), "{finding:?}");
    }
}

#[test]
fn no_route_while_ping_answers_is_the_missing_permission() {
    let mut case = Case::healthy();
    let kind = ShellErrorKind::NoRoute;
    case.nodes[1].report = Err(ShellError { host: "mac2".to_owned(), kind, detail: None });
    assert_eq!(case.problems(), ["mac2 ssh-no-route"]);
    case.here.push(ping("mac2", "192.168.1.12", Echo::Answers { mean_us: 300.0 }));
    assert_eq!(case.problems(), ["mac2 local-network-denied"]);
}

fn ping(to: &str, ip: &str, echo: Echo) -> Ping {
    Ping { to: to.to_owned(), ip: ip.parse::<IpAddr>().unwrap(), echo }
}

#[test]
fn old_systems_and_old_thunderbolt_are_distinguished() {
    check_lab(
        |lab| lab.macs[1].version = "26.2",
        &["mac2 macos-small-frames", "all os-versions-differ"],
    );
    check_lab(
        |lab| lab.macs[1].version = "15.7.1",
        &["mac2 macos-too-old", "all os-versions-differ"],
    );
    check_lab(|lab| lab.macs[0].rdma = "disabled", &["mac1 rdma-disabled"]);
    check_lab(
        |lab| {
            let mac = lab.macs[1].clone().into_mini();
            lab.macs[1] = mac;
            lab.macs[1].bridged.clear();
            for plug in lab.macs.iter_mut().flat_map(|mac| mac.plugs.values_mut()) {
                if let Plug::Mac { gbit_per_s, .. } = plug {
                    *gbit_per_s = 40;
                }
            }
        },
        // `rdma_ctl` reports `enabled` there too, so no advice about Recovery is given.
        &["mac2 thunderbolt-4"],
    );
}

#[test]
fn rdma_devices_are_held_against_the_hostfile() {
    check(
        |case| case.hostfile.hosts[0].rdma[1] = vec!["rdma_en9".to_owned()],
        &["mac1 rdma-device-missing"],
    );
    check(
        |case| case.hostfile.hosts[0].rdma[1] = vec!["rdma_en2".to_owned()],
        &["mac1 studio-port"],
    );
    check(
        |case| case.hostfile.hosts[1].rdma[0] = vec!["rdma_en5".to_owned()],
        &["mac2 rdma-port-down", "mac2 bridge-member"],
    );
    let gids = "hca_id: rdma_en3\n state: PORT_ACTIVE (4)\n GID[  0]: fe80::1\n";
    check_lab(
        |lab| {
            lab.macs[0].tools.insert("ibv_devinfo", gids.to_owned());
        },
        &["mac1 rdma-no-ipv4-gid"],
    );
    check_lab(
        |lab| {
            lab.macs[0].tools.insert("ibv_devices", "device node GUID\n".to_owned());
            lab.macs[0].tools.insert("ibv_devinfo", "No IB devices found".to_owned());
        },
        &["mac1 rdma-no-devices"],
    );
}

#[test]
fn a_device_that_leads_to_another_machine_is_found() {
    let mut lab = Lab::studios(3).cable((0, 2), (1, 2)).cable((0, 3), (2, 2)).cable((1, 3), (2, 3));
    for mac in &mut lab.macs {
        mac.bridged.clear();
        let name = mac.name.clone();
        let last = name.chars().last().unwrap();
        mac.addrs.push(("en3".to_owned(), format!("10.254.{last}.1"), 30));
        mac.addrs.push(("en4".to_owned(), format!("10.254.{last}.5"), 30));
    }
    let reports = lab.reports();
    let plan = Plan::new(&members(&reports), Over::Thunderbolt, None).unwrap();
    let mut case = Case {
        lab,
        hostfile: plan.hostfile,
        nodes: Vec::new(),
        model: None,
        here: Vec::new(),
        broken_links: Vec::new(),
    };
    case.look();
    assert_eq!(case.problems(), [] as [&str; 0]);
    case.hostfile.hosts[0].rdma.swap(1, 2);
    assert_eq!(case.problems(), ["mac1 rdma-wrong-cable", "mac1 rdma-wrong-cable"]);
}

#[test]
fn lost_and_colliding_addresses_are_found() {
    check_lab(|lab| lab.macs[1].addrs.retain(|it| it.0 != "en0"), &["mac2 address-lost"]);
    check_lab(
        |lab| lab.macs[0].addrs[0].1 = "172.20.0.9".to_owned(),
        &["mac1 address-lost", "mac1 no-common-network"],
    );
    check_lab(
        |lab| lab.macs[0].addrs.push(("en5".to_owned(), "192.168.1.200".to_owned(), 24)),
        &["mac1 gateway-overlap"],
    );
    check_lab(
        |lab| lab.macs[0].addrs.push(("en5".to_owned(), "192.168.0.1".to_owned(), 30)),
        &["mac1 home-network"],
    );
    check_lab(
        |lab| lab.macs[0].addrs.push(("en5".to_owned(), "10.9.0.1".to_owned(), 24)),
        &["mac1 wide-network"],
    );
    check_lab(
        |lab| {
            lab.macs[1].tools.insert("netstat_routes", "default 10.254.0.1 UGScg en4\n".to_owned());
        },
        &["mac2 default-over-cable"],
    );
    check_lab(
        |lab| {
            lab.macs[0].tools.insert("firewall", "Firewall is enabled. (State = 1)".to_owned());
        },
        &["mac1 firewall-on"],
    );
}

#[test]
fn two_bridged_cables_between_two_macs_are_a_loop() {
    let lab = Lab::studios(2).cable((0, 2), (1, 3)).cable((0, 4), (1, 5));
    let mut case = Case::healthy();
    case.lab = lab;
    case.look();
    assert!(case.problems().contains(&"mac1 bridge-loop".to_owned()), "{:?}", case.problems());
    // The report of one machine shows two cables that lead out of its bridge.
    let nodes = &case.nodes[..1];
    let findings =
        examine(&Examination { hostfile: None, nodes, model: None, here: &[], broken_links: &[] });
    let bridge = findings.iter().find(|it| it.code == "bridge-loop").unwrap();
    assert_eq!(bridge.severity, Severity::Warn);
}

#[test]
fn memory_processes_ports_clock_and_power_are_looked_at() {
    type Change = fn(&mut Case);
    let cases: [(Change, &[&str]); 8] = [
        (|case| report(case).facts.free_bytes = 1 << 30, &["mac1 memory-low"]),
        (|case| report(case).disk_free_bytes = Some(1 << 30), &["mac1 disk-low"]),
        (|case| report(case).clock_ahead_s = Some(-5), &["mac1 clock-skew"]),
        (
            |case| report(case).mac.as_mut().unwrap().wired_bytes = Some(100 << 30),
            &["mac1 wired-memory"],
        ),
        (
            |case| {
                let command = "mlx_lm.server --port 9".to_owned();
                let process = Process { pid: 7, parent_pid: 1, command, ..Process::default() };
                report(case).engines.push(process);
            },
            &["mac1 stale-process"],
        ),
        (
            |case| {
                report(case)
                    .listeners
                    .push(ListeningPort { port: 8080, ..ListeningPort::default() })
            },
            &["mac1 port-taken"],
        ),
        (
            |case| report(case).mac.as_mut().unwrap().power.sleep_minutes = Some(1),
            &["mac1 sleep-allowed"],
        ),
        (|case| report(case).jackalope = Some("0.0.9".to_owned()), &[]),
    ];
    for (change, wanted) in cases {
        check(change, wanted);
    }
    check(
        |case| {
            report(case).jackalope = Some("0.0.9".to_owned());
            case.nodes[1].report.as_mut().unwrap().jackalope = Some("0.1.0".to_owned());
        },
        &["all versions-differ"],
    );
}

fn program(kind: ProgramKind, pid: u32, parent_pid: u32) -> OwnProgram {
    OwnProgram {
        kind,
        pid,
        parent_pid,
        resident_bytes: 1 << 20,
        is_stopped: false,
        home: Some("/home/me/.jackalope".to_owned()),
        is_recorded: true,
        model: Some("org/m".to_owned()),
        answers: Vec::new(),
        has_coordinator: None,
    }
}

/// A server without a parent, as after nohup or a closed terminal, with the HTTP statuses of its
/// port.
fn server(live: Option<u16>, ready: Option<u16>) -> OwnProgram {
    let answer = HttpAnswer { url: "http://127.0.0.1:8080".to_owned(), live, ready };
    OwnProgram { answers: vec![answer], ..program(ProgramKind::Serve, 19, 1) }
}

#[test]
fn our_own_programs_are_judged_by_what_they_answer() {
    type Change = fn(&mut Case);
    let cases: [(Change, &[&str]); 8] = [
        (
            |case| {
                let rank = OwnProgram {
                    has_coordinator: Some(true),
                    ..program(ProgramKind::Rank, 122, 1)
                };
                let agent = program(ProgramKind::Agent, 62, 1);
                // A rank that waits for its coordinator is covered by its agent's lease.
                let waiting = OwnProgram {
                    has_coordinator: Some(false),
                    ..program(ProgramKind::Rank, 123, 62)
                };
                let all = [server(Some(200), Some(200)), agent, rank, waiting];
                report(case).programs.extend(all);
                let listener = |(port, pid)| ListeningPort { port, pid: Some(pid), program: None };
                let listeners = [(8080, 19), (18080, 19), (18081, 62)].map(listener);
                report(case).listeners.extend(listeners);
            },
            &[],
        ),
        (
            |case| report(case).programs.push(server(Some(200), Some(503))),
            &["mac1 server-not-ready"],
        ),
        (|case| report(case).programs.push(server(Some(0), Some(0))), &["mac1 server-silent"]),
        // Without a tool to query the port there is no warning.
        (|case| report(case).programs.push(server(None, None)), &[]),
        (
            |case| {
                let stopped = OwnProgram { is_stopped: true, ..server(Some(0), Some(0)) };
                report(case).programs.push(stopped);
            },
            &["mac1 program-stopped"],
        ),
        (
            |case| {
                let stopped = OwnProgram { is_stopped: true, ..program(ProgramKind::Agent, 62, 1) };
                report(case).programs.push(stopped);
            },
            &["mac1 program-stopped"],
        ),
        (
            |case| {
                let lost =
                    OwnProgram { has_coordinator: Some(false), ..program(ProgramKind::Rank, 7, 1) };
                report(case).programs.push(lost);
            },
            &["mac1 stale-process"],
        ),
        (
            |case| {
                // Another program's server, started under nohup.
                let command = "mlx_lm.server --port 8000".to_owned();
                let process = Process { pid: 7, parent_pid: 1, command, ..Process::default() };
                report(case).engines.push(process);
                let listener = ListeningPort { port: 9000, pid: Some(7), program: None };
                report(case).listeners.push(listener);
            },
            &[],
        ),
    ];
    for (change, wanted) in cases {
        check(change, wanted);
    }
}

fn report(case: &mut Case) -> &mut crate::report::NodeReport {
    case.nodes[0].report.as_mut().unwrap()
}

#[test]
fn silent_and_slow_neighbours_are_named() {
    check(
        |case| case.nodes[0].echoes.push(ping("mac2", "10.254.0.2", Echo::Silent)),
        &["mac1 ping-silent"],
    );
    check(
        |case| {
            let echo = Echo::Answers { mean_us: 4_200.0 };
            case.nodes[0].echoes.push(ping("mac2", "10.254.0.2", echo));
        },
        &["mac1 ping-slow"],
    );
}

#[test]
fn a_model_must_be_the_same_everywhere() {
    let file = |name: &str, bytes| ModelFile { name: name.to_owned(), bytes, sha256: None };
    let files = vec![file("config.json", 10), file("model.safetensors", 1000)];
    let set = |case: &mut Case, second: Option<Vec<ModelFile>>| {
        case.model = Some("/models/m");
        case.nodes[0].model = Some(Some(files.clone()));
        case.nodes[1].model = Some(second);
    };
    check(|case| set(case, Some(files.clone())), &[]);
    check(|case| set(case, None), &["mac2 model-missing"]);
    check(|case| set(case, Some(vec![])), &["mac2 model-missing"]);
    let shorter = vec![files[0].clone(), file("model.safetensors", 999)];
    check(|case| set(case, Some(shorter)), &["mac2 model-differs"]);
    let mut other = files.clone();
    other[1].sha256 = Some("00".to_owned());
    check(|case| set(case, Some(other)), &["mac2 model-differs"]);
}

#[test]
fn a_broken_link_that_the_server_here_knows_of_is_named() {
    let link = "mac1 and mac2 do not reach each other, for 9 s: no answer".to_owned();
    check(|case| case.broken_links.push(link.clone()), &["all link-broken"]);
    let mut case = Case::healthy();
    case.broken_links.push(link.clone());
    assert!(case.findings().iter().any(|it| it.code == "link-broken" && it.found == link));
}

#[test]
fn without_a_hostfile_rdma_is_merely_noted() {
    let mut case = Case::healthy();
    case.lab.macs[0].rdma = "disabled";
    case.look();
    let findings = examine(&Examination {
        hostfile: None,
        nodes: &case.nodes,
        model: None,
        here: &[],
        broken_links: &[],
    });
    let rdma = findings.iter().find(|it| it.code == "rdma-disabled").unwrap();
    assert_eq!(rdma.severity, Severity::Note);
}

#[test]
fn looking_asks_every_machine_once_and_pings_what_the_hostfile_names() {
    let case = Case::healthy();
    let mut hostfile = case.hostfile.clone();
    // Two ranks on the second machine.
    hostfile.hosts.push(hostfile.hosts[1].clone());
    let names = crate::doctor::names(&hostfile);
    assert_eq!(names, ["mac1", "mac2"]);
    let ask = crate::doctor::Ask {
        shell: &case.lab,
        hostfile: Some(&hostfile),
        model: Some("/models/m"),
        hashes: false,
    };
    let (nodes, here) = ask.look(&names);
    assert_eq!(here, []);
    assert_eq!(nodes[0].echoes, [ping("mac2", "192.168.1.12", Echo::Untried)]);
    assert_eq!(nodes[1].model, Some(None));
    assert_eq!(case.lab.ran.lock().unwrap().len(), 4);
}
