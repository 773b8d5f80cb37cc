//! Fields of `config.json` that are left out or `null`: they have the defaults of mlx-lm, as its
//! dataclasses state them.

use std::collections::BTreeMap;
use std::path::Path;

use jackalope_config::fields::FLAGS;
use jackalope_families::model_spec;
use jackalope_spec::{ModelSpec, SpecError};
use serde_json::{Map, Value, json};

use crate::checkpoints::{sample, samples};
use crate::touched::sources;

/// Defaults of the dataclasses of mlx-lm. The samples of some types have the same fields.
fn defaults() -> Vec<(&'static [&'static str], Value)> {
    let deepseek = json!({
        "vocab_size": 102_400, "hidden_size": 4096, "intermediate_size": 11_008,
        "moe_intermediate_size": 1407, "num_hidden_layers": 30, "num_attention_heads": 32,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "qk_nope_head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
        "moe_layer_freq": 1, "first_k_dense_replace": 0, "routed_scaling_factor": 1.0,
        "attention_bias": false,
    });
    let deepseek_v3 = json!({"num_experts_per_tok": 1, "norm_topk_prob": true});
    let indexers = json!({"index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048});
    let glm = json!({
        "vocab_size": 154_880, "hidden_size": 2048, "intermediate_size": 10_240,
        "moe_intermediate_size": 1536, "num_hidden_layers": 47, "num_attention_heads": 20,
        "n_shared_experts": 1, "n_routed_experts": 64, "routed_scaling_factor": 1.8,
        "kv_lora_rank": 512, "q_lora_rank": 768, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192,
        "v_head_dim": 256, "norm_topk_prob": true, "num_experts_per_tok": 4, "moe_layer_freq": 1,
        "first_k_dense_replace": 1, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
        "attention_bias": false,
    });
    let qwen3_5 = json!({
        "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "rms_norm_eps": 1e-6, "vocab_size": 151_936,
        "num_key_value_heads": 8, "linear_num_value_heads": 64, "linear_num_key_heads": 16,
        "linear_key_head_dim": 192, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "attention_bias": false, "full_attention_interval": 4, "norm_topk_prob": true,
    });
    let gpt_oss = json!({
        "num_hidden_layers": 36, "num_local_experts": 128, "num_experts_per_tok": 4,
        "vocab_size": 201_088, "rms_norm_eps": 1e-5, "hidden_size": 2880,
        "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64,
        "num_key_value_heads": 8, "sliding_window": 128, "rope_theta": 150_000,
    });
    let mixtral = json!({
        "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 14_336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_experts_per_tok": 2,
        "num_key_value_heads": 8, "num_local_experts": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
    });
    let bailing = json!({
        "rope_interleave": true, "partial_rotary_factor": 0.5, "use_qkv_bias": false,
        "use_bias": false, "use_qk_norm": true, "score_function": "sigmoid", "norm_topk_prob": true,
        "moe_router_enable_expert_bias": true, "num_nextn_predict_layers": 0,
    });
    let afmoe = json!({
        "vocab_size": 200_192, "hidden_size": 2048, "intermediate_size": 6144,
        "moe_intermediate_size": 1024, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 10_000,
        "num_experts": 128, "num_experts_per_tok": 8, "num_shared_experts": 1,
        "num_dense_layers": 2, "sliding_window": 2048, "route_norm": true, "route_scale": 2.826,
        "mup_enabled": true,
    });
    let cohere = json!({
        "hidden_size": 8192, "num_hidden_layers": 40, "intermediate_size": 22_528,
        "num_attention_heads": 64, "num_key_value_heads": 64, "rope_theta": 8e6,
        "vocab_size": 256_000, "layer_norm_eps": 1e-5, "logit_scale": 0.0625,
        "attention_bias": false, "layer_norm_bias": false, "use_qk_norm": false,
    });
    let cohere2 = json!({
        "hidden_size": 4096, "head_dim": 128, "num_hidden_layers": 32, "intermediate_size": 14_336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "rope_theta": 5e4,
        "vocab_size": 256_000, "layer_norm_eps": 1e-5, "logit_scale": 0.0625,
        "attention_bias": false, "layer_norm_bias": false, "sliding_window": 4096,
        "sliding_window_pattern": 4,
    });
    let laguna = json!({
        "vocab_size": 100_352, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 40, "num_attention_heads": 48, "num_key_value_heads": 8,
        "head_dim": 128, "rms_norm_eps": 1e-6, "attention_bias": false, "qkv_bias": false,
        "gating": true, "sliding_window": 512, "num_experts": 256, "num_experts_per_tok": 8,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    });
    let kimi_k3 = json!({
        "vocab_size": 163_840, "hidden_size": 7168, "num_hidden_layers": 93,
        "num_attention_heads": 96, "intermediate_size": 33_792, "rms_norm_eps": 1e-5,
        "mla_use_nope": true, "mla_use_output_gate": false, "num_experts_per_token": 16,
        "moe_renormalize": true, "routed_scaling_factor": 1.0, "first_k_dense_replace": 0,
        "moe_layer_freq": 1, "latent_moe_use_norm": false,
    });
    let minimax = json!({"moe_layer_freq": [1, 1, 1, 1], "use_qk_norm": true});
    let qwen = json!({
        "hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 24,
        "kv_channels": 128, "layer_norm_epsilon": 1e-6, "intermediate_size": 11_008,
        "no_bias": true, "vocab_size": 151_936,
    });
    let theta = json!({"rope_theta": 1_000_000});
    vec![
        (
            &["deepseek_v2-f32", "deepseek_v3-f32", "deepseek_v32-f32", "kimi_k2-f32"],
            deepseek.clone(),
        ),
        (&["kimi_k25-f32", "kimi_vl-f32"], deepseek),
        (&["deepseek_v3-f32", "deepseek_v32-f32", "kimi_k2-f32"], deepseek_v3.clone()),
        (&["kimi_k25-f32", "kimi_vl-f32"], deepseek_v3),
        (&["deepseek_v32-f32"], indexers),
        (&["glm4_moe_lite-f32"], glm),
        (&["qwen3_5-f32", "qwen3_5_moe-f32"], qwen3_5),
        (&["gpt_oss-f32"], gpt_oss),
        (&["mixtral-f32"], mixtral),
        (&["bailing_hybrid-f32"], bailing),
        (&["afmoe-f32"], afmoe),
        (&["cohere-f32"], cohere),
        (&["cohere2-f32"], cohere2),
        (&["laguna-f32"], laguna),
        (&["kimi_k3-f32"], kimi_k3),
        (&["minimax_m3-f32"], minimax),
        (&["kimi_linear-f32"], json!({"qk_rope_head_dim": 0})),
        (&["qwen-f32"], qwen),
        (&["qwen2-f32", "qwen2_vl-f32", "qwen2_5_vl-f32"], theta),
    ]
}

/// Returns what a configuration says after an edit of the fields of its language model.
fn reading(
    config: &Value,
    edit: impl FnOnce(&mut Map<String, Value>),
) -> Result<ModelSpec, SpecError> {
    let mut config = config.clone();
    let has_part = config["text_config"].is_object();
    let fields = if has_part { &mut config["text_config"] } else { &mut config };
    edit(fields.as_object_mut().unwrap());
    model_spec(&config)
}

#[test]
fn a_field_that_is_left_out_has_the_default_of_mlx_lm() {
    let configs: BTreeMap<String, Value> =
        samples().into_iter().map(|it| (it.name, it.config)).collect();
    let mut differing = Vec::new();
    for (names, defaults) in defaults() {
        for name in names {
            let config = &configs[*name];
            for (field, default) in defaults.as_object().unwrap() {
                let stated = reading(config, |fields| {
                    fields.insert(field.clone(), default.clone());
                });
                let absent = reading(config, |fields| {
                    fields.remove(field);
                });
                // Some defaults do not fit the other fields of a sample, which is the error then.
                let error = absent.as_ref().err().map(ToString::to_string).unwrap_or_default();
                let is_read = !error.contains("missing field") && !error.contains("is absent");
                if stated != absent || !is_read {
                    differing.push(format!("{name}, {field}: {error}"));
                }
            }
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[test]
fn a_rank_of_queries_that_is_null_is_not_the_default() {
    for name in ["deepseek_v2-f32", "deepseek_v3-f32", "kimi_vl-f32", "glm4_moe_lite-f32"] {
        let config = sample(name).config;
        let absent = reading(&config, |fields| drop(fields.remove("q_lora_rank")));
        let null = reading(&config, |fields| fields["q_lora_rank"] = Value::Null);
        let has_rank = |spec: ModelSpec| format!("{:?}", spec.layers[0]).contains("q_a_proj");
        assert!(has_rank(absent.unwrap()) && !has_rank(null.unwrap()), "{name}");
    }
}

#[test]
fn a_flag_that_is_null_is_false_in_every_family() {
    for sample in samples().into_iter().filter(|sample| sample.name.ends_with("-f32")) {
        for flag in FLAGS {
            let with = |value: Value| {
                reading(&sample.config, |fields| drop(fields.insert((*flag).to_owned(), value)))
            };
            assert!(with(Value::Null) == with(false.into()), "{}: {flag}", sample.name);
        }
    }
}

/// Booleans for which `null` is not false, with the reason at [`FLAGS`].
const NOT_FLAGS: [&str; 2] = ["rope_interleave", "mla_use_nope"];

#[test]
fn every_field_that_is_true_or_false_is_a_flag() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let files = ["families/src", "config/src"].map(|folder| sources(&crates.join(folder)));
    let mut found = Vec::new();
    for path in files.into_iter().flatten() {
        let text = std::fs::read_to_string(&path).unwrap();
        // The fields of a structure that is read begin after its derived traits.
        for item in text.split("Deserialize)]").skip(1) {
            let fields = item.split("\n}").next().unwrap().lines();
            found.extend(fields.filter_map(|line| {
                let (name, kind) = line.trim().trim_end_matches(',').split_once(": ")?;
                let is_flag = ["bool", "Option<bool>"].contains(&kind);
                is_flag.then(|| name.rsplit(' ').next().unwrap().to_owned())
            }));
        }
    }
    assert!(50 < found.len(), "{found:?}");
    found.retain(|name| !FLAGS.contains(&name.as_str()) && !NOT_FLAGS.contains(&name.as_str()));
    // Not read from `config.json`, but set by the family.
    found.retain(|name| name != "normalizes_one");
    assert!(found.is_empty(), "not in FLAGS: {found:?}");
}
