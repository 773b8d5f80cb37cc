//! Starting, running and ending on several hosts.

use rustix::process::Signal;
use serde_json::json;

use crate::checkpoint::shipped;
use crate::lab::{Lab, missing, mode_of};
use crate::program::wait_for;

/// Creates hosts, or ends the test with a printed reason.
macro_rules! lab_or_return {
    ($num_hosts:expr) => {
        match missing() {
            Some(reason) => return println!("left out: {reason}"),
            None => Lab::new($num_hosts),
        }
    };
}
pub(crate) use lab_or_return;

#[test]
fn three_hosts_serve_one_model_and_end_together() {
    let lab = lab_or_return!(3);
    let began = std::time::Instant::now();
    let server = lab.serve(&shipped(), "");
    println!("three hosts, cold start to ready: {:.1} s", began.elapsed().as_secs_f32());
    let health = server.health();
    let hosts: Vec<&str> =
        health["ranks"].as_array().unwrap().iter().map(|it| it["host"].as_str().unwrap()).collect();
    assert_eq!(hosts, ["127.0.0.1", "host-b", "host-c"]);
    let answer = server
        .ask("/v1/completions", &json!({"prompt": "hello", "max_tokens": 5, "ignore_eos": true}));
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    // The first SSH connection copied the secret, and no other user can read it.
    let secret = |idx: usize| std::fs::read_to_string(lab.hosts[idx].home.join("secret")).unwrap();
    assert!(secret(0) == secret(1) && secret(1) == secret(2));
    assert_eq!(mode_of(&lab.hosts[2].home.join("secret")), 0o600);
    for host in &lab.hosts {
        assert_eq!(host.pids_of("jackalope-rank").len(), 1);
    }
    server.program.signal(Signal::INT);
    let ended = server.program.end();
    assert!(ended.status.success(), "{ended:?}");
    for host in &lab.hosts {
        wait_for("end of the rank", || host.pids_of("jackalope-rank").is_empty().then_some(()));
    }
}

#[test]
fn ranks_end_with_a_coordinator_that_is_killed_and_a_new_one_takes_them_over() {
    let lab = lab_or_return!(2);
    let server = lab.serve(&shipped(), "--lease 600");
    let ranks =
        || -> Vec<u32> { lab.hosts.iter().flat_map(|it| it.pids_of("jackalope-rank")).collect() };
    let first = ranks();
    server.program.signal(Signal::KILL);
    drop(server);
    let server = lab.serve(&shipped(), "--lease 8");
    // Another lease is another setup: the ranks were taken over, and then loaded again.
    assert!(server.health()["ok"].as_bool().unwrap());
    let second = ranks();
    assert_eq!(second.len(), 2);
    server.program.signal(Signal::KILL);
    drop(server);
    let server = lab.serve(&shipped(), "--lease 8");
    assert_eq!(ranks(), second, "weights outlive a coordinator");
    assert_ne!(second, first);
    server.program.signal(Signal::KILL);
    drop(server);
    wait_for("end of the ranks", || ranks().is_empty().then_some(()));
}

#[test]
fn two_models_share_the_hosts_and_their_ranks_outlive_a_coordinator() {
    let lab = lab_or_return!(2);
    let other = crate::checkpoint::Copy::new();
    let more = format!(
        "--model {0} --alias other={1} --pin {1} --lease 600 --memory-budget 2GiB --kv-mib 16",
        other.path().display(),
        other.path().file_name().unwrap().to_str().unwrap()
    );
    let serve = || {
        let server = lab.serve(&shipped(), &more);
        server.wait_for_health("both models", |it| it["models"][1]["state"] == "ready");
        server
    };
    let ranks =
        || -> Vec<Vec<u32>> { lab.hosts.iter().map(|it| it.pids_of("jackalope-rank")).collect() };
    let ask = |server: &crate::http::Server, model: &str| {
        server.complete(&json!({
            "model": model, "prompt": [20, 300, 41], "max_tokens": 8, "temperature": 0,
            "return_token_ids": true,
        }))
    };
    let server = serve();
    assert_eq!(ask(&server, "default"), ask(&server, "other"));
    let first = ranks();
    assert_eq!(first.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
    server.program.signal(Signal::KILL);
    drop(server);
    let server = serve();
    assert_eq!(ranks(), first, "the weights of both outlive a coordinator");
    assert_eq!(ask(&server, "default"), ask(&server, "other"));
    let unload = server.post("/model/unload", &json!({"model": "other"}));
    assert_eq!(unload.0, 403, "everybody can reach this server");
    server.program.signal(Signal::INT);
    assert!(server.program.end().status.success());
    wait_for("end of the ranks", || ranks().iter().all(Vec::is_empty).then_some(()));
}

#[test]
fn hosts_that_lack_the_model_read_their_part_of_it_from_one_that_has_it() {
    let mut lab = lab_or_return!(3);
    let model = crate::checkpoint::Copy::new();
    let prompt = json!({"prompt": "Paris is the", "max_tokens": 12, "temperature": 0});
    let alone = lab.serve(&shipped(), "").complete(&prompt);
    // Files in subfolders are no part of the model, on any machine.
    std::fs::create_dir(model.path().join("model-other")).unwrap();
    std::fs::write(model.path().join("model-other/x.safetensors"), "no weights").unwrap();
    for at in [1, 2] {
        lab.hide(at, model.path());
    }
    let refused = |more: &[&str], found: &str| {
        let (hostfile, model) = (lab.hostfile(), model.path().to_str().unwrap());
        let args = ["serve", "--hosts", hostfile.to_str().unwrap(), "--model", model];
        let ended = lab.run(&[&args[..], more].concat());
        assert!(!ended.status.success() && ended.stderr.contains(found), "{ended:?}");
        assert!(ended.stderr.contains("hint:"), "{ended:?}");
    };
    refused(&[], "host-c has no ");
    refused(&["--models-from", "host-d"], "`--models-from host-d` is no machine of the hostfile");
    refused(&["--models-from", "host-b"], "`--models-from host-b`: host-b has no ");

    let server = lab.serve(model.path(), "--models-from localhost");
    assert_eq!(server.complete(&prompt), alone);
    let whole = std::fs::metadata(model.weights_path()).unwrap().len();
    for rank in server.announced["ranks"].as_array().unwrap() {
        let read = rank["bytes_read"].as_u64().unwrap();
        assert!(0 < read && read < whole * 2 / 3, "{rank} of {whole} bytes");
    }
    // A new process reads the model again.
    let old = lab.hosts[2].pids_of("jackalope-rank");
    crate::program::send(old[0], Signal::KILL);
    wait_for("a new rank", || Some(lab.hosts[2].pids_of("jackalope-rank")).filter(|it| *it != old));
    server.wait_for_health("ready again", |health| health["ok"] == true);
    assert_eq!(server.complete(&prompt), alone);
    server.program.signal(Signal::INT);
    assert!(server.program.end().status.success());

    // `serve` runs on a machine without ranks.
    let args = ["serve", "--hosts", "host-b,host-c", "--model", model.path().to_str().unwrap()];
    let rest = ["--models-from", "localhost", "--host", "0.0.0.0", "--insecure", "--port", "8080"];
    let program = lab.start(&[&args[..], &rest, &["--copy-port", "18082", "--json"]].concat(), "");
    let mut server = crate::http::Server::of(program);
    server.url = format!("http://{}:8080", lab.hosts[0].ip);
    assert_eq!(server.announced["ranks"].as_array().unwrap().len(), 2);
    assert_eq!(server.complete(&prompt), alone);
    assert!(lab.listens(0, 18082), "the ranks read the model from the port that was chosen");
}

#[test]
fn any_program_runs_on_all_hosts_and_its_end_is_reported() {
    let lab = lab_or_return!(3);
    let hostfile = lab.hostfile();
    let hosts = hostfile.to_str().unwrap();
    let script =
        "echo rank $MLX_RANK of $(grep -c : $MLX_HOSTFILE) $GREETING; read line; echo $line";
    let ended = lab
        .start(
            &["launch", "--hosts", hosts, "--env", "GREETING=hi", "--", "sh", "-c", script],
            "to all\n",
        )
        .end();
    assert!(ended.status.success(), "{ended:?}");
    for rank in 0..3 {
        assert!(ended.stdout.contains(&format!("[{rank}] rank {rank} of 3 hi\n")), "{ended:?}");
        assert!(ended.stdout.contains(&format!("[{rank}] to all\n")), "{ended:?}");
    }
    // A rank that fails ends the others, which would run for ever; `launch` has its exit status.
    let script = "[ $MLX_RANK = 2 ] && exit 42; exec sleep 600";
    let ended = lab.run(&["launch", "--hosts", hosts, "--", "sh", "-c", script]);
    assert_eq!(ended.status.code(), Some(42), "{ended:?}");
    assert!(ended.stderr.contains("rank 2 on host-c: exit status 42"), "{ended:?}");
    for host in &lab.hosts {
        wait_for("end of the others", || host.pids_of("sleep 600").is_empty().then_some(()));
    }
    // A signal reaches every rank.
    let script = "trap 'echo got it; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let mut program = lab.start(&["launch", "--hosts", hosts, "--", "sh", "-c", script], "");
    for _ in 0..3 {
        assert!(program.line().ends_with("ready\n"));
    }
    program.signal(Signal::TERM);
    let ended = program.end();
    assert_eq!(ended.status.code(), Some(128 + 15), "{ended:?}");
    for rank in 0..3 {
        assert!(ended.stdout.contains(&format!("[{rank}] got it\n")), "{ended:?}");
    }
}

#[test]
fn programs_are_launched_on_hosts_that_are_named_without_addresses() {
    let lab = lab_or_return!(3);
    let script = "echo rank $MLX_RANK; cat $MLX_HOSTFILE; echo";
    let ended =
        lab.run(&["launch", "--hosts", "127.0.0.1,host-b,host-c", "--", "sh", "-c", script]);
    assert!(ended.status.success(), "{ended:?}");
    for (rank, host) in lab.hosts.iter().enumerate() {
        assert!(ended.stdout.contains(&format!("[{rank}] rank {rank}\n")), "{ended:?}");
        assert!(ended.stdout.contains(&format!("\"{}:", host.ip)), "{}: {ended:?}", host.ip);
    }
}

#[test]
fn a_start_on_a_full_disk_says_so() {
    let lab = lab_or_return!(1);
    let folder = lab.hosts[0].home.join("small");
    std::fs::create_dir(&folder).unwrap();
    // A disk with less free space than the records need.
    let script = "mount -t tmpfs -o size=1m none \"$0\" || exit 99\n\
                  head -c 1000k /dev/zero > \"$0/filler\" || exit 98\n\
                  JACKALOPE_HOME=\"$0\" exec \"$@\" start --port 0 --wait 60 --model";
    let (folder, model) = (folder.to_str().unwrap(), shipped());
    let program = env!("CARGO_BIN_EXE_jackalope");
    let script = format!("{script} {}", model.display());
    let ended = lab.run_on(0, &["sh", "-c", &script, folder, program]).end();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains("no space left on device"), "{ended:?}");
    assert!(ended.stderr.contains(folder), "{ended:?}");
    assert!(ended.stderr.contains("hint: free some space there"), "{ended:?}");
}

#[test]
fn the_link_between_three_hosts_is_checked_and_measured() {
    let lab = lab_or_return!(3);
    let hostfile = lab.hostfile();
    let hosts = hostfile.to_str().unwrap();
    let words = ["link", "--hosts", hosts, "--sizes", "4096", "--budget-ms", "20"];
    let ended = lab.run(&words);
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stdout.contains("3 ranks on 127.0.0.1, host-b, host-c, libmlx"), "{ended:?}");
    assert!(ended.stdout.contains(" checks passed"), "{ended:?}");
    assert!(ended.stdout.contains("jaccl  refused: "), "{ended:?}");
    for backend in ["tcp", "ring"] {
        assert!(ended.stdout.contains(&format!("verdict: {backend} ")), "{ended:?}");
    }
    let ended = lab.run(&[&words[..], &["--backend", "tcp", "--json"]].concat());
    assert!(ended.status.success(), "{ended:?}");
    let rows: Vec<serde_json::Value> =
        ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| rows.iter().filter(|row| row["row"] == kind).collect::<Vec<_>>();
    assert_eq!(of("group")[0]["hosts"], json!(["127.0.0.1", "host-b", "host-c"]));
    assert!(of("check").iter().all(|row| row["ok"] == true), "{ended:?}");
    assert_eq!(of("verdict")[0]["backend"], "tcp");
    assert_eq!(rows.last().unwrap()["row"], "done");
    for host in &lab.hosts {
        assert!(host.pids_of("jackalope-rank").is_empty());
    }
}

#[test]
fn a_host_that_has_nothing_is_given_what_it_needs_and_left_as_it_was() {
    let lab = lab_or_return!(2);
    let (home, model) = (lab.hosts[1].home.clone(), shipped());
    std::fs::remove_dir_all(&home).unwrap();
    // Only names are given; addresses are found.
    let words = ["serve", "--hosts", "127.0.0.1,host-b", "--port", "0", "--json", "--model"];
    let words: Vec<&str> = words.into_iter().chain([model.to_str().unwrap()]).collect();
    let mut program = lab.start(&words, "");
    let announced: serde_json::Value = serde_json::from_str(&program.line()).unwrap();
    assert_eq!(announced["ranks"].as_array().unwrap().len(), 2, "{announced}");
    let ranks = lab.hosts[1].pids_of("jackalope-rank");
    let exe = std::fs::read_link(format!("/proc/{}/exe", ranks[0])).unwrap();
    assert!(exe.starts_with(home.join("versions")), "{exe:?} is not what was put there");
    program.signal(Signal::INT);
    assert!(program.end().status.success());
    let ended = lab.run(&["uninstall", "host-b", "--yes"]);
    assert!(ended.status.success(), "{ended:?}");
    assert!(!home.exists(), "nothing is left");
    assert!(lab.hosts[1].pids_of("jackalope agent").is_empty());
}

#[test]
fn a_changed_secret_is_handed_out_anew_and_agents_of_the_old_one_are_replaced() {
    let lab = lab_or_return!(2);
    let server = lab.serve(&shipped(), "");
    let agents = || lab.hosts[1].pids_of("jackalope agent");
    let first = agents();
    server.program.signal(Signal::INT);
    assert!(server.program.end().status.success());
    assert_eq!(agents(), first, "an agent stays for a while");
    std::fs::remove_file(lab.hosts[0].home.join("secret")).unwrap();
    let server = lab.serve(&shipped(), "");
    assert_ne!(agents(), first);
    assert_eq!(agents().len(), 1);
    assert_eq!(server.health()["world_size"], 2);
}

#[test]
fn hosts_are_looked_at_and_planned_for_with_nothing_installed_there() {
    let lab = lab_or_return!(2);
    std::fs::remove_dir_all(lab.hosts[1].home.join("current")).unwrap();
    let (hostfile, model) = (lab.hostfile(), shipped());
    let (hosts, model) = (hostfile.to_str().unwrap(), model.to_str().unwrap());
    let ended = lab.run(&["plan", "--model", model, "--hosts", hosts, "--machines", "2", "--json"]);
    assert!(ended.status.success(), "{ended:?}");
    let plan: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(plan.to_string().contains("host-b"), "{plan}");
    let ended = lab.run(&["doctor", "--hosts", hosts, "--json"]);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(report.to_string().contains("host-b"), "{report}");
}

#[test]
fn ranks_may_be_started_by_hand_in_any_order_from_variables_alone() {
    let lab = lab_or_return!(2);
    let hostfile = lab.hostfile();
    let secret = lab.run(&["agent", "status", "--json"]);
    assert!(secret.status.success(), "{secret:?}");
    // The secret is created on the serving machine, and copied by hand.
    let model = shipped();
    let words = ["serve", "--by-hand", "--hosts", hostfile.to_str().unwrap(), "--model"];
    let words: Vec<&str> = words.into_iter().chain([model.to_str().unwrap(), "--json"]).collect();
    let early = lab.run(&["rank", "--rank", "1", "--control", "127.0.0.1", "--wait", "1"]);
    assert!(early.stderr.contains("this machine has no secret of the cluster"), "{early:?}");
    lab.share_secret("5a".repeat(32).as_str());
    // A rank that is started before the coordinator.
    let coordinator = format!("{}:32323", lab.hosts[0].ip);
    let env = [("MLX_RANK", "1"), ("MLX_JACCL_COORDINATOR", coordinator.as_str())];
    let _second = lab.start_on(1, &["rank"], &env);
    let mut coordinator = lab.start(&words, "");
    let first = lab.start_on(0, &["rank", "--rank", "0", "--control", "127.0.0.1"], &[]);
    let announced: serde_json::Value = serde_json::from_str(&coordinator.line()).unwrap();
    assert_eq!(announced["ranks"].as_array().unwrap().len(), 2, "{announced}");
    coordinator.signal(Signal::TERM);
    assert!(coordinator.end().status.success());
    assert!(first.end().status.success(), "a rank ends with its coordinator");
}

#[test]
fn hosts_that_cannot_be_used_are_all_named_with_what_to_do() {
    let mut lab = lab_or_return!(3);
    let hostfile = lab.hostfile();
    lab.hosts[1].end_everything();
    std::fs::remove_dir_all(lab.hosts[2].home.join("current")).unwrap();
    let model = shipped();
    let args = ["serve", "--no-bootstrap", "--model", model.to_str().unwrap(), "--hosts"];
    let args: Vec<&str> = args.into_iter().chain([hostfile.to_str().unwrap()]).collect();
    let ended = lab.run(&args);
    assert!(!ended.status.success());
    assert!(ended.stderr.contains("host-b: its SSH port refuses connections"), "{ended:?}");
    assert!(ended.stderr.contains("hint: switch on Remote Login there"), "{ended:?}");
    assert!(ended.stderr.contains("host-c has no jackalope"), "{ended:?}");
    assert!(ended.stderr.contains("hint: `jackalope bootstrap host-c`"), "{ended:?}");
}
