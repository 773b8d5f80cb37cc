//! Copying models between machines, which are homes on this one.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::checkpoint::{place_of, shipped};
use crate::http::{End, Server};
use crate::install::Machines;
use crate::ports::free_port;
use crate::program::{ranks_of, send};

/// Creates the model's directory below a host's home, with the files of the shipped model.
fn place(machines: &Machines, host: &str, dir: &str) -> PathBuf {
    let dir = machines.root.join(host).join(dir);
    fs::create_dir_all(&dir).unwrap();
    for entry in fs::read_dir(shipped()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
    }
    dir
}

#[test]
fn a_model_is_copied_to_all_machines_compared_and_served_from_where_each_has_it() {
    let machines = Machines::new(&["mac8", "mac9"]);
    let port = machines.port.to_string();
    let reach = ["--hosts", "mac8,mac9", "--agent-port", &port];
    place(&machines, "ours", "models_mlx/jack/mini");
    let copied = |machines: &Machines| -> Vec<(String, bool)> {
        let rows =
            machines.rows(&[&["models", "sync", "jack/mini", "--json"], &reach[..]].concat());
        let copied = |row: &Value| row["bytes_copied"].as_u64().unwrap() != 0;
        rows.iter().map(|row| (row["host"].as_str().unwrap().to_owned(), copied(row))).collect()
    };
    let both = |is_copied| vec![("mac8".to_owned(), is_copied), ("mac9".to_owned(), is_copied)];
    refuses_a_port_that_is_taken(&machines, &reach);
    assert_eq!(copied(&machines), both(true));
    assert_eq!(copied(&machines), both(false));
    let check = [&["models", "check", "jack/mini", "--hash"], &reach[..]].concat();
    let same = machines.run(&check);
    assert!(same.status.success(), "{same:?}");
    assert!(same.stdout.contains("mac9: jack/mini in "), "{same:?}");
    // One byte changes on one machine.
    let weights = machines.root.join("mac9/models_mlx/jack/mini/model.safetensors");
    let mut content = fs::read(&weights).unwrap();
    let last = content.len() - 1;
    content[last] ^= 1;
    fs::write(&weights, content).unwrap();
    let other = machines.run(&check);
    assert!(!other.status.success(), "{other:?}");
    assert!(other.stdout.contains("mac9: model.safetensors has other content"), "{other:?}");
    assert_eq!(copied(&machines)[1], ("mac9".to_owned(), true), "it is mended");
    assert!(machines.run(&check).status.success());
    // Copies from there to a machine that has it elsewhere, and to this machine, by name.
    fs::remove_dir_all(machines.root.join("ours/models_mlx")).unwrap();
    let hosts = machines.root.join("hosts.json");
    let list = r#"[{"ssh": "127.0.0.1", "ips": ["10.0.0.1"]}, {"ssh": "mac8"}]"#;
    fs::write(&hosts, list).unwrap();
    let back = ["models", "sync", "jack/mini", "--from", "mac8", "--json"];
    let hosts = ["--hosts", hosts.to_str().unwrap(), "--agent-port", &port];
    let rows = machines.rows(&[&back[..], &hosts].concat());
    assert_eq!((&rows[0]["host"], &rows[0]["ok"]), (&"127.0.0.1".into(), &true.into()), "{rows:?}");
    assert!(machines.root.join("ours/models_mlx/jack/mini/config.json").is_file());

    serve_from_another_path(&machines, &port);
}

/// Other machines copy from the port that the user chose, and from no other.
fn refuses_a_port_that_is_taken(machines: &Machines, reach: &[&str]) {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let sync = [&["models", "sync", "jack/mini", "--copy-port", &port], reach].concat();
    let refused = machines.run(&sync);
    assert!(!refused.status.success(), "{refused:?}");
    for part in [&format!(":{port} for machines that copy models"), "hint:", "`--copy-port`"] {
        assert!(refused.stderr.contains(part), "{part} in {refused:?}");
    }
    assert!(!machines.root.join("mac8/models_mlx/jack/mini").exists());
    drop(taken);
    let copied = machines.run(&sync);
    assert!(copied.status.success(), "{copied:?}");
    for host in ["mac8", "mac9"] {
        fs::remove_dir_all(machines.root.join(host).join("models_mlx/jack/mini")).unwrap();
    }
}

/// Each rank loads the model from its machine's own path; a machine with a different model is named at once.
fn serve_from_another_path(machines: &Machines, port: &str) {
    let control = free_port().to_string();
    let args = ["serve", "--model", "jack/mini", "--hosts", "mac8,mac9", "--json"];
    let rest = ["--port", "0", "--agent-port", port, "--control-port", &control];
    let args = [&args[..], &rest].concat();
    let server = Server::of(machines.start(&args));
    assert_eq!(server.announced["ranks"].as_array().unwrap().len(), 2, "{}", server.announced);
    for (host, rank) in [("mac8", 0), ("mac9", 1)] {
        let pid = ranks_of(machines.agent(host).unwrap())[0].pid;
        let opened = format!("/proc/{pid}/exe");
        assert!(fs::read_link(opened).unwrap().starts_with(machines.home(host)), "rank {rank}");
    }
    other_weights_while_serving(machines, &server);
    server.program.signal(Signal::TERM);
    assert!(server.program.end().status.success());
    let weights = machines.root.join("mac8/models_mlx/jack/mini/model.safetensors");
    let content = fs::read(&weights).unwrap();
    // One byte is changed; the size stays the same.
    let mut flipped = content.clone();
    flipped[place_of("model.layers.1.mlp.down_proj.weight", &content) + 5] ^= 1;
    fs::write(&weights, &flipped).unwrap();
    let refused = machines.run(&args);
    assert!(!refused.status.success(), "{refused:?}");
    let named = "model.safetensors: tensor model.layers.1.mlp.down_proj.weight differs";
    assert!(refused.stderr.contains("mac8 has another jack/mini in "), "{refused:?}");
    assert!(refused.stderr.contains(named), "{refused:?}");
    assert!(refused.stderr.contains("hint: `jackalope models sync jack/mini"), "{refused:?}");
    fs::write(&weights, &content[..content.len() - 5]).unwrap();
    let refused = machines.run(&args);
    assert!(!refused.status.success(), "{refused:?}");
    assert!(refused.stderr.contains("mac8 has another jack/mini in "), "{refused:?}");
    assert!(refused.stderr.contains("hint: `jackalope models sync jack/mini"), "{refused:?}");
}

/// A rank that loads again after its weights were changed fails with an error that names them.
fn other_weights_while_serving(machines: &Machines, server: &Server) {
    let weights = machines.root.join("mac9/models_mlx/jack/mini/model.safetensors");
    let content = fs::read(&weights).unwrap();
    let request = json!({
        "prompt": [20, 300, 41], "max_tokens": 1500, "ignore_eos": true, "temperature": 0,
        "return_token_ids": true,
    });
    let mut stream = server.stream(&request);
    stream.read_tokens(5);
    let mut flipped = content.clone();
    flipped[place_of("model.norm.weight", &content) + 3] ^= 1;
    fs::write(&weights, flipped).unwrap();
    send(ranks_of(machines.agent("mac9").unwrap())[0].pid, Signal::KILL);
    let (answer, end) = stream.read_all();
    let End::Error(error) = end else { panic!("the stream went on: {answer:?}") };
    let message = error["message"].as_str().unwrap();
    for part in ["rank 1 on mac9", "model.safetensors", "model.norm.weight", "hint:"] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    fs::write(&weights, content).unwrap();
}
