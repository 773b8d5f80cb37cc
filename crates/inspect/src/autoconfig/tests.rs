//! Clusters of two, three and four Macs, from the output of their tools to hostfiles.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::lab::{Lab, Plug, members};
use super::*;
use crate::report::Network;

fn plan(lab: &Lab, wanted: Option<Backend>) -> Plan {
    let reports = lab.reports();
    Plan::new(&members(&reports), Over::Thunderbolt, wanted).unwrap()
}

/// Returns everything that the user sees of a plan.
fn shown(plan: &Plan) -> String {
    let mut text = terminal(&plan.cabling, &plan.choice);
    let Choice { backend, because, missing, is_as_wanted, .. } = &plan.choice;
    writeln!(text, "backend {} (as wanted: {is_as_wanted})", backend.name()).unwrap();
    for line in because {
        writeln!(text, "  because {line}").unwrap();
    }
    for line in missing {
        writeln!(text, "  missing {line}").unwrap();
    }
    for step in &plan.steps {
        writeln!(text, "{}: sudo {}\n    undo: {}", step.host, step.command, step.undo).unwrap();
    }
    for check in &plan.checks {
        writeln!(text, "{} pings {} at {}", check.host, check.peer, check.ip).unwrap();
    }
    text + &hostfile_json(&plan.hostfile)
}

fn pair() -> Lab {
    Lab::studios(2).cable((0, 2), (1, 3))
}

fn mesh_of_three() -> Lab {
    Lab::studios(3).cable((0, 2), (1, 2)).cable((0, 3), (2, 2)).cable((1, 3), (2, 3))
}

fn ring_of_four() -> Lab {
    let lab = Lab::studios(4).cable((0, 2), (1, 2)).cable((1, 3), (3, 2));
    lab.cable((3, 3), (2, 2)).cable((2, 3), (0, 3))
}

#[test]
fn two_macs_and_a_cable_are_a_mesh() {
    insta::assert_snapshot!(shown(&plan(&pair(), None)));
}

#[test]
fn three_macs_in_a_mesh_use_rdma() {
    let plan = plan(&mesh_of_three(), None);
    insta::assert_snapshot!(shown(&plan));
    insta::assert_snapshot!("three_macs_in_a_mesh_as_graphviz", dot(&plan.cabling));
}

#[test]
fn four_macs_in_a_ring_use_the_ring() {
    insta::assert_snapshot!(shown(&plan(&ring_of_four(), None)));
}

#[test]
fn three_macs_in_a_chain_use_tcp_and_learn_which_cable_is_missing() {
    let lab = Lab::studios(3).cable((0, 2), (1, 2)).cable((1, 3), (2, 2));
    let plan = plan(&lab, Some(Backend::Jaccl));
    assert!(!plan.choice.is_as_wanted);
    insta::assert_snapshot!(shown(&plan));
}

#[test]
fn two_cables_between_two_macs_are_both_used() {
    insta::assert_snapshot!(shown(&plan(&pair().cable((0, 4), (1, 5)), None)));
}

#[test]
fn thunderbolt_4_is_recognised_and_uses_tcp() {
    let mut lab = Lab::studios(2);
    lab.macs = lab.macs.into_iter().map(lab::Mac::into_mini).collect();
    insta::assert_snapshot!(shown(&plan(&lab.cable((0, 1), (1, 2)), None)));
}

#[test]
fn nothing_connected_still_gives_what_works() {
    insta::assert_snapshot!(shown(&plan(&Lab::studios(2), None)));
}

#[test]
fn a_display_is_no_cable_and_a_port_next_to_ethernet_no_rdma() {
    let mut lab = Lab::studios(2).cable((0, 1), (1, 2));
    lab.macs[0].plugs.insert(4, Plug::Display);
    insta::assert_snapshot!(shown(&plan(&lab, None)));
}

/// Some or all machines restart: their ports are in the bridge again and have no addresses.
#[test]
fn after_a_reboot_each_cable_gets_the_addresses_it_had() {
    for rebooted in [vec![0], vec![1], vec![0, 1, 2]] {
        let fresh = mesh_of_three();
        let mut lab = mesh_of_three();
        let before = plan(&lab, None);
        for step in &before.steps {
            apply(&mut lab, step);
        }
        for at in rebooted {
            lab.macs[at] = fresh.macs[at].clone();
        }
        let reports = lab.reports();
        let over = Over::Thunderbolt;
        let again = Plan::again(&members(&reports), over, None, &before.given).unwrap();
        assert!(!again.steps.is_empty());
        assert_eq!((&again.given, &again.hostfile), (&before.given, &before.hostfile));
        for step in &again.steps {
            apply(&mut lab, step);
        }
        let reports = lab.reports();
        let after = Plan::again(&members(&reports), over, None, &before.given).unwrap();
        assert_eq!(after.steps, [], "{}", shown(&after));
    }
    // Without a record, the cable that lost half of its addresses would get a new network.
    let mut lab = pair();
    let before = plan(&lab, None);
    before.steps.iter().for_each(|step| apply(&mut lab, step));
    lab.macs[0] = pair().macs[0].clone();
    assert_ne!(plan(&lab, None).given, before.given);
}

#[test]
fn after_the_commands_nothing_is_left_to_do() {
    for mut lab in [pair(), mesh_of_three(), ring_of_four(), pair().cable((0, 4), (1, 5))] {
        let before = plan(&lab, None);
        assert!(!before.steps.is_empty());
        for step in &before.steps {
            apply(&mut lab, step);
        }
        let after = plan(&lab, None);
        assert_eq!(after.steps, [], "{}", shown(&after));
        assert_eq!(after.hostfile, before.hostfile);
    }
}

/// Simulates the effect of a command on a Mac.
fn apply(lab: &mut Lab, step: &Step) {
    let mac = lab.macs.iter_mut().find(|it| it.name == step.host).unwrap();
    let words: Vec<&str> = step.command.split(' ').collect();
    match words[..] {
        ["ifconfig", "bridge0", "deletem", interface] => mac.bridged.retain(|it| it != interface),
        ["ifconfig", interface, "inet", ip, "netmask", "255.255.255.252", "up"] => {
            mac.addrs.retain(|it| it.0 != interface);
            mac.addrs.push((interface.to_owned(), ip.to_owned(), 30));
        }
        _ => panic!("{}", step.command),
    }
}

#[test]
fn a_stale_route_to_a_peer_is_bent_back_to_the_cable() {
    let mut lab = pair();
    for step in plan(&lab, None).steps {
        apply(&mut lab, &step);
    }
    lab.macs[0].routes.push("10.254.0.2/32      192.168.1.1        UGHS       en0".to_owned());
    let steps = plan(&lab, None).steps;
    assert_eq!(steps.len(), 1);
    assert_eq!(steps[0].command, "route -n change -host 10.254.0.2 -interface en3");
    assert_eq!(steps[0].undo, "route -n change -host 10.254.0.2 -interface en0");
}

#[test]
fn addresses_that_collide_with_the_network_are_replaced() {
    let mut lab = pair();
    for (mac, interface) in lab.macs.iter_mut().zip(["en3", "en4"]) {
        let ip = if interface == "en3" { "192.168.1.201" } else { "192.168.1.202" };
        mac.addrs.push((interface.to_owned(), ip.to_owned(), 24));
    }
    let plan = plan(&lab, None);
    let step = plan.steps.iter().find(|it| it.command.contains("10.254.0.1")).unwrap();
    assert_eq!(step.undo, "ifconfig en3 inet 192.168.1.201 netmask 255.255.255.0");
}

#[test]
fn a_machine_that_is_reached_through_its_bridge_is_a_risk() {
    let mut lab = pair();
    lab.macs[1].name = "me@192.168.2.2".to_owned();
    lab.macs[1].tools.insert(
        "ifconfig",
        "en0: flags=8863<UP> mtu 1500\n\tinet 192.168.1.12 netmask 0xffffff00\n\
         bridge0: flags=8863<UP> mtu 1500\n\tinet 192.168.2.2 netmask 0xffffff00\n\
         \tmember: en4 flags=3<LEARNING,DISCOVER>\n"
            .to_owned(),
    );
    let risks = plan(&lab, None).risks;
    assert_eq!(risks.len(), 1);
    assert!(risks[0].starts_with("me@192.168.2.2 is reached through bridge0"), "{risks:?}");
    assert_eq!(plan(&pair(), None).risks, [] as [&str; 0]);
}

#[test]
fn ethernet_needs_no_commands() {
    let lab = pair();
    let reports = lab.reports();
    let plan = Plan::new(&members(&reports), Over::Ethernet, None).unwrap();
    assert_eq!(plan.steps, []);
    insta::assert_snapshot!(hostfile_json(&plan.hostfile));
}

#[test]
fn a_machine_without_an_address_is_named() {
    let mut lab = Lab::studios(2);
    lab.macs[1].addrs.clear();
    let reports = lab.reports();
    let err = Plan::new(&members(&reports), Over::Ethernet, None).unwrap_err();
    assert_eq!(err, PlanError::NoAddress { host: "mac2".to_owned() });
}

proptest! {
    #[test]
    fn given_addresses_never_overlap_what_a_machine_has_or_routes_to(
        taken in prop::collection::vec((any::<u16>(), 9u8..=32, any::<bool>()), 0..12),
    ) {
        let mut lab = mesh_of_three();
        let mut networks = Vec::new();
        for (idx, (low, prefix_len, is_route)) in taken.into_iter().enumerate() {
            let ip = std::net::Ipv4Addr::from_bits(0x0afe_0000 | u32::from(low));
            let network = Network::of(jackalope_protocol::machine::InterfaceAddr { ip: ip.into(), prefix_len });
            networks.push(network);
            let mac = &mut lab.macs[idx % 3];
            if is_route {
                mac.routes.push(format!("{network}  192.168.1.1  UGS  en0"));
            } else {
                mac.addrs.push(("en0".to_owned(), ip.to_string(), prefix_len));
            }
        }
        let plan = plan(&lab, Some(Backend::Tcp));
        let given = plan.checks.iter().map(|check| check.ip);
        for ip in given {
            prop_assert!(networks.iter().all(|it| !it.holds(ip)), "{} {:?}", ip, networks);
        }
    }
}
