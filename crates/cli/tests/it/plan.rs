//! Ranks load what was planned; a model that does not fit is refused.

use serde_json::{Value, json};

use crate::checkpoint::{Copy, shipped};
use crate::program::{run, run_json};

/// Plans two ranks on this machine, under two names with these sizes of memory.
fn planned(copy: &Copy, memory: &str, split: &str) -> Value {
    let path = copy.path().join("hosts.json");
    let hosts = json!([{"ssh": "127.0.0.1"}, {"ssh": "localhost"}]);
    std::fs::write(&path, hosts.to_string()).unwrap();
    let (model, path) = (copy.path().to_str().unwrap(), path.to_str().unwrap());
    let args = ["plan", "--model", model, "--hosts", path, "--memory", memory, "--machines", "2"];
    run_json(&[&args[..], &["--split", split, "--json"]].concat())
}

#[test]
fn ranks_hold_the_bytes_that_were_planned() {
    let copy = Copy::new();
    let model = copy.path().to_str().unwrap();
    let unequal = "127.0.0.1=17GiB,localhost=5GiB";
    for (memory, split, numbers) in [
        ("4GiB", "tensor", json!([1, 1])),
        (unequal, "tensor", json!([8, 2])),
        ("4GiB", "pipeline", json!([2, 2])),
        (unequal, "pipeline", json!([3, 1])),
    ] {
        let plan = planned(&copy, memory, split);
        let link = &plan["links"][0];
        assert_eq!((&link["ranks"], &link["encrypted"]), (&json!([0, 1]), &json!(false)), "{plan}");
        let (name, flag) = match split {
            "tensor" => ("shares", "--share"),
            _ => ("layers", "--layers"),
        };
        let found = plan[name].as_array().unwrap();
        let ratio = |all: &[Value]| all[0].as_f64().unwrap() / all[1].as_f64().unwrap();
        assert_eq!(ratio(found), ratio(numbers.as_array().unwrap()), "{plan}");
        let share: Vec<String> = found.iter().map(Value::to_string).collect();
        let share = share.join(",");
        let args = ["bench", "--model", model, "--ranks", "2", flag, &share, "--json"];
        let short = ["--prompt-tokens", "8", "--gen-tokens", "2", "--concurrency", "1"];
        let loaded = run_json(&[&args[..], &short].concat());
        for rank in 0..2 {
            let (planned, loaded) = (&plan["ranks"][rank], &loaded["ranks"][rank]);
            assert_eq!(planned["weights_bytes"], loaded["weights_bytes"], "{share}");
            let tokens = plan["context_tokens"].as_u64().unwrap();
            let kv_bytes = loaded["kv_bytes_per_token"].as_u64().unwrap() * tokens;
            assert_eq!(planned["kv_bytes"], kv_bytes, "{share}");
        }
    }
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_what_is_missing() {
    let model = shipped();
    let args = ["plan", "--model", model.to_str().unwrap(), "--memory", "600MiB"];
    let ended = run(&args);
    assert!(!ended.status.success());
    for cause in ["127.0.0.1: needs ", " are missing", "hint:"] {
        assert!(ended.stderr.contains(cause), "no {cause:?} in {ended:?}");
    }
    let ended = run(&[&args[..], &["--json"]].concat());
    assert!(!ended.status.success());
    let told: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(told["fits"], false);
    assert!(0 < told["missing_bytes"].as_u64().unwrap());
    let nowhere = run(&["plan", "--model", "/no/such/model"]);
    assert!(nowhere.stderr.contains("no checkpoint at /no/such/model"), "{nowhere:?}");
    assert!(nowhere.stderr.contains("hint:"), "{nowhere:?}");
}

#[test]
fn a_model_that_this_version_cannot_load_is_refused_before_anything_starts() {
    let copy = Copy::new();
    let model = copy.path().to_str().unwrap();
    let offline = ["--port", "0", "--json"];
    let commands = [
        &["plan", "--model", model][..],
        &["models", "check", model],
        &[&["serve", "--model", model][..], &offline].concat(),
        &["bench", "--model", model],
    ];
    let unknown = ["architecture: `hy_v4`; supported are afmoe", "choose a supported model"];
    let invalid = ["`num_attention_heads` is 0", "fetch config.json again"];
    for (field, value, causes) in [
        ("num_attention_heads", Value::from(0), invalid),
        ("model_type", Value::from("hy_v4"), unknown),
    ] {
        copy.edit_config(|config| config[field] = value);
        for args in &commands {
            let ended = run(args);
            assert!(!ended.status.success(), "{ended:?}");
            for cause in causes {
                assert_eq!(ended.stderr.matches(cause).count(), 1, "{args:?}: {ended:?}");
            }
        }
    }
}
