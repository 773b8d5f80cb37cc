//! A passive listener on the network between hosts.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::checkpoint::shipped;
use crate::lab::{Lab, missing};
use crate::launching::lab_or_return;

/// Reports what a listener at the first host's interface captures while a model is loaded and
/// answers.
fn overhear(lab: &Lab, interface: &str, words: &str) -> (Value, String, Value) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hosts/eavesdrop.py");
    let mut bystander = lab.run_on(0, &["python3", script, interface]);
    assert_eq!(bystander.line().trim(), "{\"listening\": true}");
    let server = lab.serve(&shipped(), words);
    let prompt = json!({"prompt": "Paris is the", "max_tokens": 24, "temperature": 0});
    server.complete(&prompt);
    let (encrypts, status) =
        (server.health()["ranks"][0]["encrypts"].clone(), lab.run(&["status"]).stdout);
    server.program.signal(Signal::INT);
    assert!(server.program.end().status.success());
    bystander.signal(Signal::INT);
    let heard = bystander.end().stdout;
    let heard: Value = serde_json::from_str(heard.lines().last().unwrap()).unwrap();
    println!("`{words}`, {interface}: {heard}");
    (encrypts, status, heard)
}

#[test]
fn what_ranks_on_two_hosts_send_each_other_is_encrypted() {
    let lab = lab_or_return!(2);
    let (encrypts, status, heard) = overhear(&lab, "eth0", "--lease 0");
    assert_eq!(encrypts, json!([false, true]));
    assert!(status.contains(", encrypted"), "{status}");
    // Every token sends a hidden state of the shipped model in both directions.
    assert!(24 * 1024 < heard["rank_bytes"].as_u64().unwrap(), "{heard}");
    assert_eq!(heard["headers"], 0, "{heard}");
    // The same listener finds the frames if encryption is off.
    let (encrypts, status, heard) = overhear(&lab, "eth0", "--lease 0 --encrypt-data off");
    assert_eq!(encrypts, json!([false, false]));
    assert!(status.contains(", in clear"), "{status}");
    assert!(24 < heard["headers"].as_u64().unwrap(), "{heard}");
}

#[test]
fn a_cable_between_two_hosts_is_trusted_by_default() {
    let lab = lab_or_return!(2);
    let interface = lab.lay_private_cable();
    let (encrypts, _, heard) = overhear(&lab, interface, "--lease 0");
    assert_eq!(encrypts, json!([false, false]));
    assert!(24 < heard["headers"].as_u64().unwrap(), "{heard}");
    let (encrypts, _, heard) = overhear(&lab, interface, "--lease 0 --encrypt-data on");
    assert_eq!(encrypts, json!([false, true]));
    assert!(24 * 1024 < heard["rank_bytes"].as_u64().unwrap(), "{heard}");
    assert_eq!(heard["headers"], 0, "{heard}");
}
