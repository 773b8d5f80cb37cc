//! Impossible commands are refused with a reason and an exit code, and leave no process behind.

use std::fs::Permissions;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;

use crate::checkpoint::{Copy, Tensor, exact, shipped};
use crate::http::Server;
use crate::program::{Ended, Program, run, wait_for};

const A_WEIGHT: &str = "model.layers.1.mlp.up_proj.weight";

fn generate(model: &Path, args: &[&str]) -> Ended {
    let model = model.to_str().unwrap();
    run(&[&["generate", "--model", model, "--prompt-ids", "20,21", "--json"], args].concat())
}

/// Checks that the command fails, reports all of `causes`, and prints nothing on standard output.
fn check(ended: &Ended, causes: &[&str]) {
    assert!(!ended.status.success(), "{ended:?}");
    assert_eq!(ended.stdout, "", "{ended:?}");
    for cause in causes {
        assert!(ended.stderr.contains(cause), "no {cause:?} in {ended:?}");
    }
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
}

/// Checks that `command` has every option that its hints name.
fn check_hints(command: &str, ended: &Ended) {
    let help = run(&[command, "--help"]).stdout;
    let hints = ended.stderr.lines().filter_map(|line| line.split_once("hint: ").map(|it| it.1));
    let hints: Vec<&str> = hints.collect();
    assert!(!hints.is_empty(), "{ended:?}");
    let is_option = |c: char| c.is_ascii_alphanumeric() || c == '-';
    for word in hints.iter().flat_map(|hint| hint.split(|c| !is_option(c))) {
        let is_known = help.split(|c| !is_option(c)).any(|it| it == word);
        assert!(!word.starts_with("--") || is_known, "`{command}` has no {word}: {ended:?}");
    }
}

#[test]
fn hints_name_options_that_the_command_has() {
    let model = shipped();
    let model = model.to_str().unwrap();
    for wish in ["--ranks 5 --split pipeline", "--ranks 2 --share 1,0", "--ranks 2 --layers 1,1"] {
        let words = ["serve", "--port", "0", "--model", model];
        let words: Vec<&str> = words.into_iter().chain(wish.split(' ')).collect();
        let ended = run(&words);
        check(&ended, &["hint:"]);
        check_hints("serve", &ended);
    }
    let plan = run(&["plan", "--model", model, "--split", "pipeline", "--machines", "5"]);
    assert!(!plan.status.success(), "{plan:?}");
    check_hints("plan", &plan);
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    check(&generate(Path::new("/no/such/model"), &[]), &["/no/such/model", "hint:"]);
}

#[test]
fn a_directory_without_a_checkpoint_is_named() {
    let copy = Copy::new();
    std::fs::remove_file(copy.path().join("config.json")).unwrap();
    check(&generate(copy.path(), &[]), &["config.json", "hint:"]);
}

#[test]
fn files_that_cannot_be_used_are_named_with_a_hint() {
    let copy = Copy::new();
    let model = copy.path().to_str().unwrap();
    let folder = format!("hosts lint {model}");
    let taken = format!("synth --out {model}/config.json");
    let keys = format!("serve --model {model} --port 0 --api-key-file /no/such");
    let config = copy.path().join("empty.json");
    std::fs::write(&config, "{}").unwrap();
    let empty = format!("synth --config {} --out {model}/synth", config.display());
    let cases = [
        ("hosts lint /no/such", "/no/such"),
        (&folder, model),
        ("synth --config /no/such --out /no/such", "/no/such"),
        (&taken, "config.json"),
        (&empty, "empty.json: missing field `model_type`"),
        (&keys, "/no/such"),
        ("serve --models-config /no/such", "/no/such"),
        ("serve --models-dir /no/such", "/no/such"),
        ("doctor --log /no/such", "/no/such"),
        ("autoconfig --undo /no/such", "/no/such"),
        ("fingerprint --save /no/such", "/no/such"),
    ];
    for (command, cause) in cases {
        let ended = run(&command.split(' ').collect::<Vec<&str>>());
        check(&ended, &[cause, "\nhint: "]);
    }
}

#[test]
fn shares_that_do_not_fit_the_ranks_are_refused() {
    let ended = generate(&shipped(), &["--ranks", "2", "--share", "1,2,3"]);
    check(&ended, &["--share", "hint:"]);
    check(&generate(&shipped(), &["--ranks", "2", "--share", "0,0"]), &["--share", "hint:"]);
    check(&generate(&shipped(), &["--ranks", "2", "--share", "1,0"]), &["--share", "hint:"]);
    check(&generate(&shipped(), &["--ranks", "2", "--share", "1,x"]), &["--share"]);
    for layers in ["1,1", "4", "3,2", "0,4", "2,2,0", "5000000000,4", "4294967295,4294967295"] {
        check(&generate(&shipped(), &["--ranks", "2", "--layers", layers]), &["--layers"]);
    }
    let both = ["--ranks", "2", "--layers", "2,2", "--share", "1,1"];
    check(&generate(&shipped(), &both), &["--layers", "--share"]);
    let other = ["--ranks", "2", "--layers", "2,2", "--split", "tensor"];
    check(&generate(&shipped(), &other), &["--layers", "--split tensor", "hint:"]);
    let many = ["--ranks", "5", "--split", "pipeline"];
    check(&generate(&shipped(), &many), &["can be cut, of which there are 4", "hint:"]);
    for wish in [["--split", "pipeline"], ["--layers", "2,2"]] {
        let over = [&wish[..], &["--ranks", "2", "--backend", "jaccl"]].concat();
        check(&generate(&shipped(), &over), &["a pipeline cannot use jaccl", "--backend tcp"]);
    }
    check(&generate(&shipped(), &["--ranks", "0"]), &["--ranks"]);
}

#[test]
fn a_rank_whose_share_is_too_small_for_any_part_holds_nothing() {
    let all = generate(exact(), &["--max-tokens", "20"]);
    let ended = generate(exact(), &["--ranks", "2", "--share", "10000,1", "--max-tokens", "20"]);
    assert!(ended.status.success(), "{ended:?}");
    let tokens = |ended: &Ended| {
        serde_json::from_str::<serde_json::Value>(&ended.stdout).unwrap()["token_ids"].clone()
    };
    assert_eq!(tokens(&ended), tokens(&all));
}

/// The first rank refuses it; there are no further attempts.
#[test]
fn what_this_libmlx_lacks_is_named_at_once() {
    // On a Mac the official library has JACCL, and on machines with a GPU of NVIDIA's it has NCCL.
    let lacking: &[&str] = if cfg!(target_os = "macos") { &["nccl"] } else { &["jaccl"] };
    for backend in lacking {
        let ended = generate(&shipped(), &["--ranks", "2", "--backend", backend]);
        check(&ended, &[&format!("no {backend} backend"), "hint: use --backend tcp"]);
        assert!(!ended.stderr.contains("trying again"), "{ended:?}");
    }
}

/// An instruction set is never replaced by another one.
#[test]
fn an_instruction_set_is_the_one_that_was_named_or_refused() {
    let model = shipped();
    let args = ["generate", "--model", model.to_str().unwrap(), "--prompt-ids", "20,21", "--json"];
    let with = |set| Program::start_with(&args, "", &[("JACKALOPE_CPU", set)]).end();
    let scalar = with("scalar");
    assert!(scalar.status.success(), "{scalar:?}");
    let foreign = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    for set in ["sse9", foreign] {
        let refused = with(set);
        check(&refused, &["JACKALOPE_CPU", set, "hint:"]);
        assert!(!refused.stderr.contains("trying again"), "{refused:?}");
    }
}

#[test]
fn an_architecture_that_is_not_supported_is_named() {
    let copy = Copy::new();
    copy.edit_config(|config| {
        config["model_type"] = json!("hyena");
        config["architectures"] = json!(["HyenaForCausalLM"]);
    });
    check(&generate(copy.path(), &["--ranks", "2"]), &["hyena"]);
}

#[test]
fn a_configuration_that_is_not_json_is_named() {
    let copy = Copy::new();
    std::fs::write(copy.path().join("config.json"), "{\"model_type\": ").unwrap();
    check(&generate(copy.path(), &["--ranks", "2"]), &["config.json"]);
}

#[test]
fn a_truncated_file_of_weights_is_named() {
    let copy = Copy::new();
    let len = std::fs::metadata(copy.weights_path()).unwrap().len();
    for len in [len - 1, len / 2, 1000, 5, 0] {
        let file = std::fs::OpenOptions::new().write(true).open(copy.weights_path()).unwrap();
        file.set_len(len).unwrap();
        check(&generate(copy.path(), &["--ranks", "2"]), &["model.safetensors"]);
    }
}

#[test]
fn a_missing_tensor_is_named() {
    let copy = Copy::new();
    copy.edit_weights(|weights| weights.tensors.retain(|tensor| tensor.name != A_WEIGHT));
    check(&generate(copy.path(), &["--ranks", "2"]), &["model.layers.1.mlp.up_proj"]);
}

#[test]
fn an_extra_tensor_is_named() {
    let copy = Copy::new();
    copy.edit_weights(|weights| {
        weights.tensors.push(Tensor {
            name: "model.layers.1.mlp.side_proj.weight".to_owned(),
            dtype: "BF16".to_owned(),
            shape: vec![2, 2],
            data: vec![0; 8],
        });
    });
    check(&generate(copy.path(), &["--ranks", "2"]), &["model.layers.1.mlp.side_proj.weight"]);
}

#[test]
fn a_tensor_of_another_shape_is_named() {
    let copy = Copy::new();
    copy.edit_weights(|weights| {
        let tensor = weights.tensor(A_WEIGHT);
        tensor.shape[0] /= 2;
        tensor.data.truncate(tensor.data.len() / 2);
    });
    check(&generate(copy.path(), &["--ranks", "2"]), &[A_WEIGHT]);
}

#[test]
fn a_tokenizer_that_is_not_there_is_named() {
    let copy = Copy::new();
    std::fs::remove_file(copy.path().join("tokenizer.json")).unwrap();
    check(&generate(copy.path(), &[]), &["tokenizer.json"]);
}

#[test]
fn tokens_outside_the_vocabulary_and_prompts_beyond_the_context_are_refused() {
    let model = shipped();
    let model = model.to_str().unwrap();
    let far = run(&["generate", "--model", model, "--prompt-ids", "20,99999"]);
    check(&far, &["99999"]);
    let long = vec!["20"; 2100].join(",");
    let long = run(&["generate", "--model", model, "--prompt-ids", &long]);
    check(&long, &["2048"]);
}

#[test]
fn a_port_in_use_is_named_before_any_rank_is_started() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let model = shipped();
    let args = ["serve", "--model", model.to_str().unwrap(), "--port", &port];
    check(&run(&args), &[&port, "hint:", "--port"]);
}

#[test]
fn a_server_for_everybody_needs_a_key_or_the_owners_word() {
    let model = shipped();
    let args = ["serve", "--model", model.to_str().unwrap(), "--host", "0.0.0.0", "--port", "0"];
    check(&run(&args), &["0.0.0.0", "hint:", "--api-key"]);
    let empty = [&args[..], &["--api-key", ""]].concat();
    check(&run(&empty), &["hint:"]);
    for args in ["--host 0.0.0.0 --api-key secret", "--host 0.0.0.0 --insecure"] {
        let server = Server::start(&model, args);
        assert!(server.url.starts_with("http://0.0.0.0:"), "{}", server.url);
    }
}

#[test]
fn flags_of_earlier_servers_are_accepted() {
    let line = "serve --host 0.0.0.0 --port 8000 --continuous-batching --insecure --model /no/such";
    let ended = run(&line.split(' ').collect::<Vec<&str>>());
    assert!(ended.stderr.contains("no checkpoint at /no/such"), "{ended:?}");
}

#[test]
fn ranks_of_link_and_of_localai_take_a_port_of_the_given_range() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let words = ["link", "--ranks", "2", "--rounds", "1", "--data-ports", &port];
    check(&run(&words), &["listening for peers", &port, "hint: free a port of `--data-ports`"]);
    drop(taken);

    let copy = Copy::new();
    let (home, hostfile) = (copy.path().join("home"), copy.path().join("hosts.json"));
    std::fs::create_dir(&home).unwrap();
    std::fs::write(home.join("secret"), "5a".repeat(32)).unwrap();
    std::fs::set_permissions(home.join("secret"), Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&hostfile, json!(["127.0.0.1:1", "127.0.0.1:2"]).to_string()).unwrap();
    let words = ["worker", "mlx-distributed", "--rank", "1", "--hostfile"];
    let more = [hostfile.to_str().unwrap(), "--data-ports", &port];
    let home = [("JACKALOPE_HOME", home.to_str().unwrap())];
    let _rank = Program::start_with(&[&words[..], &more].concat(), "", &home);
    wait_for("a rank on its port", || TcpStream::connect(format!("127.0.0.1:{port}")).ok());
}
