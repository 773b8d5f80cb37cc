//! The addresses on which programs listen, and a network without IPv4.

use serde_json::json;

use crate::checkpoint::exact;
use crate::http::Server;
use crate::lab::{Lab, missing};
use crate::launching::lab_or_return;

/// Port of the HTTP server, which the tests reach from outside.
const HTTP: u16 = 8080;

/// Ports on which a host listens on all of its addresses.
fn everywhere(lab: &Lab, at: usize) -> Vec<u16> {
    let table = lab.run_on(at, &["cat", "/proc/net/tcp", "/proc/net/tcp6"]).end().stdout;
    let port = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (ip, port) = words.get(1)?.rsplit_once(':')?;
        // 0A means LISTEN.
        let is_any = words.get(3) == Some(&"0A") && ip.bytes().all(|byte| byte == b'0');
        if is_any { u16::from_str_radix(port, 16).ok() } else { None }
    };
    table.lines().filter_map(port).collect()
}

fn check_listeners(lab: &Lab) {
    assert_eq!(everywhere(lab, 0), [HTTP]);
    for at in 1..lab.hosts.len() {
        assert!(everywhere(lab, at).is_empty(), "host {at} listens on all addresses");
    }
}

fn check_tokens(lab: &Lab) {
    let request = json!({
        "prompt": [40, 41, 42, 43], "max_tokens": 60, "ignore_eos": true, "temperature": 0,
        "return_token_ids": true,
    });
    let expected = Server::start(exact(), "--ranks 1").complete(&request);
    let server = lab.serve(exact(), "");
    assert_eq!(server.complete(&request), expected);
    check_listeners(lab);
    let health = server.health();
    assert_eq!(health["ranks"].as_array().map(Vec::len), Some(lab.hosts.len()), "{health}");
}

#[test]
fn nothing_listens_on_all_addresses() {
    let lab = lab_or_return!(2);
    check_tokens(&lab);
}

#[test]
fn a_network_without_ipv4_carries_a_cluster() {
    if let Some(reason) = missing() {
        println!("not run: {reason}");
        return;
    }
    check_tokens(&Lab::with_ipv6_only(2));
}
