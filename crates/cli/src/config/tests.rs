//! Tests of the layers: their precedence, and the messages for invalid values.

use super::*;

fn variables(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn resolved(typed: &str, environment: &[(&str, &str)], file: &str) -> Resolved {
    resolve_parts(words(typed), &variables(environment), Some(file)).unwrap()
}

/// Returns a flag's value and its source.
fn value(resolved: &Resolved, flag: &str) -> String {
    let (value, origin) = &resolved.set[flag];
    let is_argument = resolved.words.iter().any(|it| *it == format!("--{flag}={value}"));
    assert!(is_argument, "{resolved:?}");
    format!("{value}: {origin}")
}

fn refusal(environment: &[(&str, &str)], file: &str) -> String {
    let profile = if environment.iter().any(|it| it.0.starts_with("HTTP")) {
        "jaccl-cluster"
    } else {
        "ring"
    };
    let typed = words(&format!("jackalope serve --model m --profile {profile}"));
    let err = resolve_parts(typed, &variables(environment), Some(file)).unwrap_err();
    format!("{err:#}")
}

const JACCL: &str = "jackalope serve --model m --profile jaccl-cluster";

#[test]
fn a_flag_comes_before_the_environment_before_the_file_before_the_profile() {
    let file = "A=b\nHTTP_PORT=3\nQUEUE_MAX=5\n";
    let all = resolved(JACCL, &[("HTTP_PORT", "2")], file);
    assert_eq!(value(&all, "port"), "2: env HTTP_PORT");
    assert_eq!(value(&all, "queue-max"), "5: .env line 3, QUEUE_MAX");
    assert_eq!(value(&all, "control-port"), "18080: profile jaccl-cluster, CTRL_PORT");
    let typed = resolved(&format!("{JACCL} --port 1"), &[("HTTP_PORT", "2")], file);
    assert!(!typed.set.contains_key("port"), "it was typed");
    // The environment takes precedence over the file, whatever the names; Jackalope's own name
    // takes precedence over the profile's.
    let own = [("JACKALOPE_PORT", "7"), ("HTTP_PORT", "2")];
    assert_eq!(value(&resolved(JACCL, &own, file), "port"), "7: env JACKALOPE_PORT");
    let in_file = resolved(JACCL, &[("HTTP_PORT", "2")], "JACKALOPE_PORT=9");
    assert_eq!(value(&in_file, "port"), "2: env HTTP_PORT");
    let empty = resolved(JACCL, &[("HTTP_PORT", "")], "");
    assert_eq!(value(&empty, "port"), "8080: profile jaccl-cluster, HTTP_PORT");
}

#[test]
fn machines_that_are_looked_for_are_not_those_of_a_variable() {
    let typed = resolved(&format!("{JACCL} --discover=3"), &[("HOSTFILE", "hosts.json")], "");
    assert!(!typed.set.contains_key("hosts"), "machines are found");
    assert!(resolved(JACCL, &[("HOSTFILE", "hosts.json")], "").set.contains_key("hosts"));
}

#[test]
fn without_a_profile_only_our_own_names_mean_something() {
    let typed = "jackalope serve --model m";
    let all =
        resolved(typed, &[("HTTP_PORT", "2"), ("JACKALOPE_STALL_TIMEOUT", "4")], "QUEUE_MAX=1");
    assert_eq!(value(&all, "stall-timeout"), "4: env JACKALOPE_STALL_TIMEOUT");
    assert_eq!(all.set.len(), 1);
    let switch =
        resolved(typed, &[("JACKALOPE_INSECURE", "yes"), ("JACKALOPE_CHECKSUMS", "0")], "");
    assert!(switch.words.contains(&"--insecure".to_owned()), "{switch:?}");
    assert!(!switch.words.contains(&"--checksums".to_owned()), "{switch:?}");
    // A file in the working directory cannot select a program to run.
    assert!(!resolved(typed, &[], "JACKALOPE_SSH=evil").set.contains_key("ssh"));
    let theirs = resolve_parts(words(typed), &BTreeMap::new(), Some("somebody else's file"));
    assert_eq!(theirs.unwrap().set.len(), 0);
    // The file itself may select a profile, and commands that do not serve stay unchanged.
    let chosen = resolved(typed, &[], "JACKALOPE_PROFILE=ring\nAPI_PORT=77\n");
    assert_eq!(value(&chosen, "port"), "77: .env line 2, API_PORT");
    assert_eq!(resolved("jackalope models ls", &[("MODEL_DIR", "x")], "").set.len(), 0);
}

#[test]
fn the_model_may_come_from_a_variable_and_is_asked_for_by_its_name() {
    let typed = "jackalope start --profile jaccl-cluster";
    let found = resolved(typed, &[("MODEL_DIR", "/m x")], "");
    assert_eq!(value(&found, "model"), "/m x: env MODEL_DIR");
    assert_eq!(resolved(typed, &[], "").missing_model, Some("MODEL_DIR"));
    let err = resolve(words(typed), &BTreeMap::new()).unwrap_err();
    assert!(format!("{err:#}").starts_with("MODEL_DIR is not set\nhint: "), "{err:#}");
}

#[test]
fn workers_become_machines_and_have_to_agree() {
    let ring = "jackalope serve --model m --profile ring";
    let two = [("WORKER_HOSTS", "10.0.0.2, 10.0.0.3"), ("WORKER_SSH", "me@a,b")];
    let all = resolved(ring, &two, "");
    assert_eq!(value(&all, "hosts"), "127.0.0.1,me@a,b: env WORKER_SSH");
    assert_eq!(value(&all, "port"), "8100: profile ring, API_PORT");
    assert_eq!(all.open_files, Some((2048, 4096)));
    assert_eq!(value(&resolved(ring, &[("NUM_DEVICES", "2")], ""), "ranks"), "2: env NUM_DEVICES");
    let typed = resolved(&format!("{ring} --hosts a"), &two, "");
    assert!(!typed.set.contains_key("hosts"));
    let lists = [("WORKER_HOSTS", "a,b"), ("WORKER_SSH", "a")];
    assert!(
        refusal(&lists, "").starts_with("WORKER_HOSTS names 2 machines and WORKER_SSH 1\nhint")
    );
    let devices = [("NUM_DEVICES", "2"), two[0], two[1]];
    assert!(refusal(&devices, "").contains("this machine and its workers are 3"));
}

#[test]
fn a_wrong_value_is_named_with_its_rule_and_one_that_would_do() {
    for (name, wrong, rule) in [
        ("HTTP_PORT", "0", "env HTTP_PORT is `0`: a port is a whole number from 1 to 65535"),
        ("HTTP_PORT", "http", "from 1 to 65535\nhint: for example HTTP_PORT=8080"),
        ("POLL_INTERVAL_SECONDS", "11", "a number above 0 and at most 10"),
        ("POLL_INTERVAL_SECONDS", "0", "a number above 0"),
        ("LOG_LEVEL", "warnin", "DEBUG, INFO, WARNING, ERROR, CRITICAL; did you mean WARNING?"),
        ("MAX_SEQUENCE_LENGTH", "-1", "a whole number from 1 to 4294967295"),
        ("WORKER_SSH", "a,,b", "it has to name a machine or an address"),
        ("WORKER_SSH", "-oProxyCommand=x", "it has to name a machine"),
        ("FILE_DESCRIPTOR_SOFT_LIMIT", "9999", "make the hard limit at least 9999"),
    ] {
        let message = refusal(&[(name, wrong)], "");
        assert!(message.contains(rule) && message.contains("hint: "), "{name}={wrong}: {message}");
    }
    assert!(refusal(&[], "nothing\n").starts_with(".env line 1: there is no `=`"));
    assert!(refusal(&[], "API_PORT=x").starts_with(".env line 1, API_PORT is `x`"));
}

#[test]
fn options_without_effect_are_reported_once_and_typos_are_recognised() {
    let ring = "jackalope serve --model m --profile ring";
    let noted =
        resolved(ring, &[("SOCKET_PATH", "/x"), ("LOG_LEVEL", "debug")], "API_PROT=1\nX=2\n");
    assert_eq!(noted.log_level, Some("debug"));
    assert_eq!(noted.notes.len(), 2, "{:?}", noted.notes);
    assert!(noted.notes[0].starts_with("env SOCKET_PATH has no effect: "), "{:?}", noted.notes);
    assert!(noted.notes[1].ends_with("did you mean API_PORT?"), "{:?}", noted.notes);
    let unknown = resolved(ring, &[("DISTRIBUTED_BACKEND", "gloo")], "");
    assert!(!unknown.set.contains_key("backend"));
    assert!(
        unknown.notes[0].contains("known values are tcp, ring, jaccl, nccl"),
        "{:?}",
        unknown.notes
    );
    let known = resolved(ring, &[("DISTRIBUTED_BACKEND", "ring")], "");
    assert_eq!(value(&known, "backend"), "ring: env DISTRIBUTED_BACKEND");
    let forwarded = resolved(JACCL, &[("MLX_METAL_FAST_SYNCH", "1")], "");
    assert_eq!(value(&forwarded, "env"), "MLX_METAL_FAST_SYNCH=1: env MLX_METAL_FAST_SYNCH");
}

#[test]
fn remembered_arguments_leave_out_those_about_output() {
    let typed = "jackalope -v start --no-replace --model m --wait 3 --json --port=0";
    assert_eq!(resolved(typed, &[], "").typed, ["--model", "m", "--port=0"]);
}

#[test]
fn every_flag_that_a_variable_names_is_there() {
    let flags: Vec<String> = serve_flags().collect();
    for variable in table::JACCL_CLUSTER.iter().chain(table::RING) {
        if let Effect::Flag(flag) = variable.effect {
            assert!(flags.iter().any(|it| it == flag), "{}", variable.name);
        }
        assert!(!variable.applies_default || !variable.default.is_empty(), "{}", variable.name);
    }
}

#[test]
fn what_the_other_programs_do_by_default_is_understood() {
    for (profile, variables) in [("jaccl-cluster", table::JACCL_CLUSTER), ("ring", table::RING)] {
        let usual: Vec<(&str, &str)> = variables
            .iter()
            .filter(|it| !it.default.is_empty())
            .map(|it| (it.name, it.default))
            .collect();
        assert!(5 < usual.len());
        let typed = format!("jackalope serve --model m --profile {profile}");
        let all = resolved(&typed, &usual, "");
        let parsed = <Args as clap::Parser>::try_parse_from(&all.words).unwrap();
        let crate::args::Command::Serve(args) = parsed.command else { panic!("{parsed:?}") };
        assert_eq!(args.request_timeout, Some(std::time::Duration::from_secs(120)));
        let (port, max_tokens, thinking) = match profile {
            "ring" => (8100, 50, None),
            _ => (8080, 512, Some(false)),
        };
        assert_eq!(
            (args.port, args.default_max_tokens, args.thinking),
            (port, Some(max_tokens), thinking)
        );
    }
}

#[test]
fn the_arguments_of_every_target_of_the_makefile_are_understood() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let makefile = std::fs::read_to_string(format!("{root}/Makefile")).unwrap();
    let targets: Vec<&str> =
        makefile.lines().filter_map(|line| Some(line.split_once(": ##")?.0)).collect();
    // Without these variables the targets only ask for them.
    let wanted = ["MODEL=org/name", "REMOTE=host", "MODEL_DIR=/model", "HOSTS=mac1,mac2"];
    let mut num_commands = 0;
    for target in
        targets.into_iter().filter(|it| it.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
    {
        #[expect(clippy::disallowed_methods, reason = "tests watch the processes from outside")]
        let mut make = std::process::Command::new("make");
        make.args(["-C", root, "-n", "--no-print-directory", target, "JACKALOPE=jackalope"]);
        let made = make.args(wanted).arg("HOSTFILE=hosts.json").output().unwrap();
        assert!(made.status.success(), "{target}: {made:?}");
        let made = String::from_utf8(made.stdout).unwrap();
        for line in made.lines().filter(|line| line.starts_with("jackalope ")) {
            num_commands += 1;
            match with_optional_model().try_get_matches_from(words(line)) {
                Ok(_) => {}
                Err(err) if err.kind() == clap::error::ErrorKind::DisplayVersion => {}
                Err(err) => panic!("`make {target}` runs `{line}`: {err}"),
            }
        }
    }
    assert!(30 < num_commands, "{num_commands}");
}
