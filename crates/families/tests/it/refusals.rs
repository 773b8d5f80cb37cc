//! Configurations that describe no model: each error names the field or the setting.

use jackalope_families::{computed_types, model_spec};
use jackalope_spec::{ModuleQuantization, SpecError};
use serde_json::{Value, json};

fn llama(edit: &Value) -> Value {
    let mut config = json!({
        "model_type": "llama", "hidden_size": 128, "num_hidden_layers": 2, "vocab_size": 200,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 256,
        "rms_norm_eps": 1e-5,
    });
    for (field, value) in edit.as_object().unwrap() {
        config[field] = value.clone();
    }
    config
}

#[track_caller]
fn check(edit: &Value, expected: &str, is_unsupported: bool) {
    let err = model_spec(&llama(edit)).unwrap_err();
    assert!(err.to_string().contains(expected), "`{expected}` is not in: {err}");
    assert_eq!(err.is_unsupported(), is_unsupported, "{err}");
}

#[test]
fn what_is_not_supported_is_refused_with_the_choices() {
    assert!(model_spec(&llama(&json!({}))).is_ok());
    let SpecError::Architecture { found, supported } =
        model_spec(&llama(&json!({"model_type": "mamba"}))).unwrap_err()
    else {
        panic!("an unknown architecture")
    };
    let mut computed = computed_types();
    computed.sort_unstable();
    assert_eq!((found.as_str(), supported), ("mamba", computed));
    check(&json!({"model_file": "mine.py"}), "`mine.py`", true);
    check(&json!({"hidden_act": "gelu"}), "unsupported activation: `gelu`", true);
    check(&json!({"rope_scaling": {"type": "spiral"}}), "unsupported rope type: `spiral`", true);
    let other = json!({"quantization_config": {"quant_method": "bitsandbytes"}});
    check(&other, "unsupported quantisation: `bitsandbytes`", true);
    check(
        &json!({"layer_types": ["chunked_attention", "full_attention"]}),
        "`chunked_attention`",
        true,
    );
}

#[test]
fn what_a_family_does_not_compute_is_refused_by_its_value() {
    let refused = |edit: Value, expected: &str| check(&edit, expected, true);
    let yarn = json!({"type": "yarn", "factor": 2.0});
    refused(json!({"model_type": "phi3", "rope_scaling": yarn}), "unsupported rope type: `yarn`");
    let nemotron = json!({"model_type": "nemotron", "rope_scaling": yarn});
    refused(nemotron, "unsupported rope type: `yarn`");
    let llama3 = json!({"type": "llama3", "factor": 2.0});
    refused(json!({"model_type": "internlm2", "rope_scaling": llama3}), "rope type: `llama3`");
    refused(json!({"model_type": "nemotron", "hidden_act": "silu"}), "activation: `silu`");
    refused(json!({"model_type": "gemma4_text", "attention_bias": true}), "bias: `true`");
    let all = json!({"model_type": "gemma4_text", "use_bidirectional_attention": "all"});
    refused(all, "use_bidirectional_attention: `\"all\"`");
    let part = json!({"sliding_attention": {"rope_type": "default", "partial_rotary_factor": 0.5}});
    let part = json!({"model_type": "gemma4_text", "num_kv_shared_layers": 0,
        "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": part});
    refused(part, "`0.5`");
    refused(json!({"model_type": "gemma2", "hidden_act": "relu"}), "activation: `relu`");
    refused(json!({"model_type": "apertus", "post_norm": true}), "unsupported post_norm: `true`");
    refused(json!({"model_type": "apertus", "qk_norm": false}), "unsupported qk_norm: `false`");
    let ministral = json!({"model_type": "mistral3", "text_config": {"model_type": "mamba"}});
    refused(ministral, "unsupported text model: `mamba`");
    let wrong = |edit: Value, expected: &str| check(&edit, expected, false);
    wrong(json!({"model_type": "glm4"}), "`partial_rotary_factor` is absent");
    wrong(json!({"model_type": "qwen"}), "`kv_channels` is 128");
    let zero = json!({
        "model_type": "granite", "rope_theta": 1e4, "logits_scaling": 0.0,
        "attention_multiplier": 1.0, "embedding_multiplier": 1.0, "residual_multiplier": 1.0,
    });
    wrong(zero, "`logits_scaling` is 0, expected a positive number");
}

#[test]
fn mlx_quantisation_hides_what_transformers_says_of_it() {
    let both = json!({"quantization": {"bits": 4, "group_size": 64},
        "quantization_config": {"bits": 4, "quant_method": "gptq"}});
    let spec = model_spec(&llama(&both)).unwrap();
    let most = spec.quantization.most.unwrap();
    assert_eq!((most.bits, most.group_size), (4, 64));
}

#[test]
fn modules_without_sizes_have_those_that_mlx_takes_for_their_mode() {
    let config = llama(&json!({"quantization": {"bits": 4, "group_size": 32,
        "a": {"bits": 8}, "b": {"mode": "mxfp4"}, "c": {"mode": "nvfp4"}, "d": {"mode": "mxfp8"}}}));
    let quantization = model_spec(&config).unwrap().quantization;
    let sizes = ["a", "b", "c", "d"].map(|module| match quantization.of_module(module) {
        Some(ModuleQuantization::Format(format)) => (format.bits, format.group_size),
        other => panic!("{module}: {other:?}"),
    });
    assert_eq!(sizes, [(8, 64), (4, 32), (4, 16), (8, 32)]);
}

#[test]
fn other_ways_of_awq_and_gptq_are_refused_by_their_settings() {
    let refused = [
        ("awq with version \"gemv\"", json!({"quant_method": "awq", "version": "gemv"})),
        ("awq with bits 3", json!({"quant_method": "awq", "bits": 3})),
        ("awq with zero_point false", json!({"quant_method": "awq", "zero_point": false})),
        ("awq with group_size -1", json!({"quant_method": "awq", "group_size": -1})),
        ("awq with backend \"llm-awq\"", json!({"quant_method": "awq", "backend": "llm-awq"})),
        ("gptq with bits 3", json!({"quant_method": "gptq", "bits": 3})),
        ("gptq with desc_act true", json!({"quant_method": "gptq", "desc_act": true})),
        (
            "gptq with checkpoint_format \"marlin\"",
            json!({"quant_method": "gptq", "checkpoint_format": "marlin"}),
        ),
        ("gptq with group_size 0", json!({"quant_method": "gptq", "group_size": 0})),
        (
            "gptq with dynamic {\"-:lm_head\":{}}",
            json!({"quant_method": "gptq", "dynamic": {"-:lm_head": {}}}),
        ),
    ];
    for (found, stated) in refused {
        let expected = format!("unsupported quantisation: `{found}`");
        check(&json!({"quantization_config": stated}), &expected, true);
    }
}

#[test]
fn quantisations_of_originals_are_refused_by_their_method() {
    let blocks = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [64, 128]});
    let wider = json!({"quant_method": "fp8", "fmt": "e5m2", "weight_block_size": [128, 128]});
    // Llama of RedHatAI, and models whose integers have a zero point.
    let floats = json!({"quant_method": "compressed-tensors", "format": "float-quantized"});
    let groups =
        json!({"group_0": {"weights": {"num_bits": 4, "type": "int", "symmetric": false}}});
    let shifted = json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": groups});
    let packed = |further: Value| {
        let mut stated = json!({"quant_method": "compressed-tensors", "format": "pack-quantized"});
        stated.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        stated
    };
    let weights = |size: Value| json!({"num_bits": 4, "type": "int", "group_size": size});
    let two = json!({"a": {"weights": weights(32.into())}, "b": {"weights": weights(64.into())}});
    // NVIDIA's exports.
    let exported = json!({"quant_method": "modelopt", "quant_algo": "FP8"});
    let refused = [
        ("fp8 in blocks of [64,128]", blocks),
        ("fp8 with e5m2 codes", wider),
        ("compressed-tensors, float-quantized", floats),
        (
            "compressed-tensors, pack-quantized of \
             {\"num_bits\":4,\"type\":\"int\",\"symmetric\":false}",
            shifted,
        ),
        (
            "compressed-tensors, pack-quantized of \
             {\"num_bits\":4,\"type\":\"int\",\"group_size\":-1}",
            packed(json!({"config_groups": {"group_0": {"weights": weights((-1).into())}}})),
        ),
        (
            "compressed-tensors, pack-quantized of \
             {\"num_bits\":4,\"type\":\"int\",\"group_size\":64}",
            packed(json!({"config_groups": two})),
        ),
        (
            "compressed-tensors, pack-quantized and \"nvfp4-pack-quantized\"",
            packed(json!({"config_groups": {"group_0": {"format": "nvfp4-pack-quantized"}}})),
        ),
        (
            "compressed-tensors, pack-quantized with config_groups that are no object",
            packed(json!({"config_groups": []})),
        ),
        (
            "compressed-tensors, pack-quantized with transform_config {\"config_groups\":{\"R1\":1}}",
            packed(json!({"transform_config": {"config_groups": {"R1": 1}}})),
        ),
        (
            "compressed-tensors, pack-quantized with sparsity_config {\"format\":\"sparse-24\"}",
            packed(json!({"sparsity_config": {"format": "sparse-24"}})),
        ),
        ("modelopt", exported),
    ];
    for plain in [json!({"transform_config": {}}), json!({"sparsity_config": {"format": "dense"}})]
    {
        let mut config = crate::checkpoints::sample("qwen3_vl-original-names-f32").config;
        config["text_config"]["quantization_config"] = packed(plain);
        assert!(model_spec(&config).is_ok());
    }
    for (found, stated) in refused {
        let expected = format!("unsupported quantisation: `{found}`; supported are MLX's affine");
        check(&json!({"quantization_config": stated}), &expected, true);
        let mut config = crate::checkpoints::sample("qwen3_vl-original-names-f32").config;
        config["text_config"]["quantization_config"] = stated;
        let err = model_spec(&config).unwrap_err();
        assert!(err.is_unsupported() && err.to_string().contains(&expected), "{err}");
        // A conversion of it, whose other configuration is that of the original.
        config["quantization"] = json!({"bits": 4, "group_size": 64});
        assert!(model_spec(&config).is_ok());
    }
}

#[test]
fn tables_in_files_of_their_own_are_refused_by_the_field_that_names_them() {
    let mut config = crate::checkpoints::sample("qwen4_exp-f32").config;
    let text =
        if config.get("text_config").is_some() { &mut config["text_config"] } else { &mut config };
    text["ple_storage"] = json!({"manifest": "ple-store.json", "cache_rows": 0});
    let err = model_spec(&config).unwrap_err();
    assert!(err.is_unsupported());
    let expected = "unsupported ple_storage: `ple-store.json`; supported are tables in model*";
    assert!(err.to_string().contains(expected), "{err}");
}

#[test]
fn values_out_of_bounds_are_named_with_their_field() {
    let huge = u32::MAX;
    check(&json!({"vocab_size": 0}), "`vocab_size` is 0, expected a number from 1", false);
    check(&json!({"hidden_size": huge}), "`hidden_size` is 4294967295", false);
    check(&json!({"num_hidden_layers": huge}), "`num_hidden_layers` is 4294967295", false);
    check(&json!({"hidden_size": -1}), "expected u32", false);
    check(&json!({"rope_theta": 1}), "`rope_theta` is 1, expected a number above 1", false);
    check(
        &json!({"num_key_value_heads": 3}),
        "expected a divisor of num_attention_heads, 4",
        false,
    );
    check(&json!({"hidden_size": null}), "expected u32", false);
    assert!(model_spec(&json!({})).unwrap_err().to_string().contains("model_type"));
    assert!(model_spec(&json!([])).is_err());
}

/// Checks the error about one of the test checkpoints' configurations with these fields changed.
#[track_caller]
fn check_sample(name: &str, edit: &Value, expected: &str) {
    let mut config = crate::checkpoints::sample(name).config;
    for (field, value) in edit.as_object().unwrap() {
        config[field] = value.clone();
    }
    let err = model_spec(&config).unwrap_err().to_string();
    assert!(err.contains(expected), "`{expected}` is not in: {err}");
}

#[test]
fn what_the_newest_families_do_not_compute_is_refused_by_its_field() {
    let k3 = |edit: Value, expected: &str| {
        let mut text = crate::checkpoints::sample("kimi_k3-f32").config["text_config"].clone();
        text.as_object_mut().unwrap().extend(edit.as_object().unwrap().clone());
        // Whether the fields are nested or not.
        let nested = json!({"model_type": "kimi_k3", "text_config": text});
        text["model_type"] = json!("kimi_k3");
        for config in [nested, text] {
            let err = model_spec(&config).unwrap_err().to_string();
            assert!(err.contains(expected), "`{expected}` is not in: {err}");
        }
    };
    k3(json!({"hidden_act": "silu"}), "unsupported activation: `silu`");
    k3(json!({"mla_use_nope": false}), "`mla_use_nope` is false");
    k3(json!({"moe_router_activation_func": "softmax"}), "is softmax, expected sigmoid");
    k3(json!({"attn_res_block_size": 0}), "`attn_res_block_size` is 0");
    k3(json!({"activation_situ_linear_beta": -1.0}), "expected a positive number");
    k3(json!({"routed_expert_hidden_size": 0}), "`routed_expert_hidden_size` is 0");
    let ling = |edit: Value, expected: &str| check_sample("bailing_hybrid-v3-f32", &edit, expected);
    ling(json!({"no_kda_lora": false}), "`no_kda_lora` is false, expected true");
    ling(json!({"kda_safe_gate": false}), "`kda_safe_gate` is false, expected true");
    ling(json!({"rope_interleave": false}), "`rope_interleave` is false, expected true");
    ling(json!({"norm_topk_prob": false}), "`norm_topk_prob` is false, expected true");
    ling(json!({"use_qkv_bias": true}), "`use_qkv_bias` is true, expected false");
    ling(json!({"score_function": "softmax"}), "`score_function` is softmax, expected sigmoid");
    ling(json!({"kda_lower_bound": 1.0}), "`kda_lower_bound` is 1, expected a number");
    let exaone = |edit: Value, expected: &str| check_sample("exaone_moe-f32", &edit, expected);
    exaone(json!({"scoring_func": "softmax"}), "unsupported scoring_func: `softmax`");
    exaone(json!({"topk_method": "greedy"}), "unsupported topk_method: `greedy`");
    exaone(json!({"is_moe_layer": [true]}), "`is_moe_layer` is 1, expected 4 entries");
    let llama3 = json!({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}});
    exaone(llama3.clone(), "unsupported rope type: `llama3`");
    check_sample("afmoe-f32", &llama3, "unsupported rope type: `llama3`");
    let laguna = |edit: Value, expected: &str| check_sample("laguna-f32", &edit, expected);
    laguna(json!({"swa_attention_sink_enabled": true}), "is true, expected false");
    laguna(
        json!({"moe_router_score_func": "softmax"}),
        "is softmax, expected sigmoid or sqrtsoftplus",
    );
    laguna(json!({"num_attention_heads_per_layer": [6]}), "is 1, expected 4 entries");
    laguna(
        json!({"mlp_layer_types": ["dense", "dense", "wide", "dense"]}),
        "type of block: `wide`",
    );
    let scores = json!({"score_func": "tanh"});
    check_sample("afmoe-f32", &scores, "`score_func` is tanh, expected sigmoid or softmax");
}

#[test]
fn what_a_family_does_not_compute_is_refused_by_its_field() {
    let limit = json!({"swiglu_limit": 5.0});
    check_sample("gpt_oss-f32", &limit, "`swiglu_limit` is 5, expected 7");
    let types = json!({"layer_types": ["full_attention"]});
    check_sample("gpt_oss-f32", &types, "`layer_types` is 1, expected 4 entries");
    let many = json!({"num_experts_per_tok": 11});
    check_sample("gpt_oss-f32", &many, "`num_experts_per_tok` is 11, expected at most 10");
    check_sample("ernie4_5_moe-f32", &json!({"use_bias": true}), "unsupported use_bias: `true`");
    let longcat = |edit: Value, expected: &str| check_sample("longcat_flash-f32", &edit, expected);
    longcat(json!({"attention_method": "GQA"}), "unsupported attention_method: `GQA`");
    longcat(json!({"zero_expert_type": "copy"}), "unsupported zero_expert_type: `copy`");
    longcat(json!({"mla_scale_q_lora": false}), "`mla_scale_q_lora` is false, expected true");
    longcat(json!({"moe_topk": 17}), "`moe_topk` is 17, expected at most 16");
    let sparse = |edit: Value, expected: &str| check_sample("deepseek_v32-f32", &edit, expected);
    let types = |types: &[&str]| json!({"indexer_types": types});
    sparse(types(&["full", "none", "full"]), "unsupported indexer type: `none`");
    sparse(types(&["shared", "full", "full"]), "`indexer_types[0]` is shared, expected full");
    sparse(types(&["full"]), "`indexer_types` is 1, expected 3 entries");
    sparse(json!({"index_topk_freq": 0}), "`index_topk_freq` is 0");
    let pattern = json!({"index_topk_pattern": "FSX"});
    sparse(pattern, "`index_topk_pattern` is FSX, expected letters F and S");
    sparse(json!({"index_head_dim": 8}), "expected at least qk_rope_head_dim, 12");
    sparse(json!({"index_topk": 0}), "`index_topk` is 0, expected a number from 1");
    sparse(json!({"q_lora_rank": null}), "`q_lora_rank` is absent, expected a number");
    let kimi = |edit: Value, expected: &str| check_sample("kimi_linear-f32", &edit, expected);
    kimi(json!({"mla_use_nope": false}), "`mla_use_nope` is false, expected true");
    kimi(json!({"q_lora_rank": 64}), "`q_lora_rank` is 64, expected null");
    let scores = json!({"moe_router_activation_func": "tanh"});
    kimi(scores, "`moe_router_activation_func` is tanh, expected sigmoid or softmax");
    let delta = |field: &str, found: Value| {
        let mut linear =
            crate::checkpoints::sample("kimi_linear-f32").config["linear_attn_config"].clone();
        linear[field] = found;
        json!({"linear_attn_config": linear})
    };
    kimi(delta("gate_lower_bound", json!(-5.0)), "gate_lower_bound` is -5, expected null");
    kimi(delta("use_full_rank_gate", json!(true)), "use_full_rank_gate` is true, expected false");
    let gate = json!({"moe_gate_act": "relu"});
    check_sample("ernie4_5_moe-f32", &gate, "unsupported moe_gate_act: `relu`");
    let layers = json!({"no_rope_layers": [1, 0]});
    check_sample("smollm3-f32", &layers, "`no_rope_layers` is 2, expected 4 entries");
    let parameters = json!({"rope_parameters": {"rope_theta": 1e4}});
    check_sample("ministral3-f32", &parameters, "llama_4_scaling_beta");
    check_sample("minimax-f32", &json!({"scoring_func": "softmax"}), "scoring_func");
    check_sample(
        "phimoe-f32",
        &json!({"lm_head_bias": false}),
        "unsupported lm_head_bias: `false`",
    );
    let without_magnitude = json!({"rope_scaling": {"type": "su", "long_factor": vec![1.0; 16]}});
    check_sample("phimoe-f32", &without_magnitude, "`rope_scaling.long_mscale` is absent");
}

#[test]
fn what_a_hybrid_does_not_compute_is_refused_by_its_field() {
    let yarn = json!({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}});
    check_sample("lfm2-f32", &yarn, "unsupported rope type: `yarn`");
    check_sample(
        "lfm2-f32",
        &json!({"block_dim": 64}),
        "`block_dim` is 64, expected hidden_size, 128",
    );
    check_sample("lfm2-f32", &json!({"full_attn_idxs": [4]}), "`full_attn_idxs` is 4");
    let types = json!({"layer_types": ["conv", "conv", "linear_attention"]});
    check_sample("lfm2-biases-f32", &types, "unsupported layer type: `linear_attention`");
    let text = json!({"text_config": {"model_type": "lfm2_moe"}});
    check_sample("lfm2-vl-f32", &text, "unsupported text model: `lfm2_moe`");
    check_sample("olmo_hybrid-f32", &yarn, "unsupported rope type: `yarn`");
    let types = json!({"layer_types": ["conv", "full_attention"]});
    check_sample("olmo_hybrid-uneven-f32", &types, "unsupported layer type: `conv`");
}

#[test]
fn what_layers_with_heads_of_their_own_do_not_compute_is_refused_by_its_field() {
    let other = json!({"attention_other_setting": {
        "num_attention_heads": 6, "num_attention_groups": 3, "head_dim": 64,
    }});
    check_sample("step3p5-f32", &other, "`attention_other_setting.head_dim` is 64");
    let softmax = json!({"moe_router_activation": "softmax"});
    check_sample("step3p5-f32", &softmax, "unsupported moe_router_activation: `softmax`");
    check_sample("step3p5-f32", &json!({"moe_layers_enum": "1-3"}), "`moe_layers_enum` is 1-3");
    check_sample(
        "step3p5-f32",
        &json!({"rope_theta": [1e4]}),
        "`rope_theta` is 1, expected an entry",
    );
    check_sample("step3p5-f32", &json!({"swiglu_limits": [0, -1.0]}), "`swiglu_limits` is -1");
    check_sample("step3p5-f32", &json!({"num_attention_groups": 3}), "`num_attention_groups` is 3");
    let mimo = |edit: Value, expected: &str| check_sample("mimo_v2_flash-f32", &edit, expected);
    mimo(json!({"topk_method": "greedy"}), "unsupported topk_method: `greedy`");
    mimo(json!({"scoring_func": "softmax"}), "unsupported scoring_func: `softmax`");
    mimo(json!({"attention_bias": true}), "unsupported attention_bias: `true`");
    mimo(
        json!({"hybrid_layer_pattern": [0, 1]}),
        "`hybrid_layer_pattern` is 2, expected 4 entries",
    );
    mimo(json!({"swa_num_key_value_heads": 4}), "`swa_num_key_value_heads` is 4");
    mimo(json!({"attention_value_scale": 0}), "`attention_value_scale` is 0");
    mimo(json!({"rope_scaling": {"type": "yarn"}}), "unsupported rope type: `yarn`");
}

#[test]
fn what_deepseek_v4_does_not_compute_is_refused_by_its_field() {
    let refused = |field: &str, value: Value, expected: &str| {
        check_sample("deepseek_v4-f32", &json!({ field: value }), expected);
    };
    refused("compress_ratios", json!([0, 4]), "`compress_ratios` is 2, expected 5 entries");
    refused(
        "compress_ratios",
        json!([0, 4, 3, 4, 0]),
        "`compress_ratios` is 3, expected 0, or div",
    );
    refused("o_groups", json!(4), "`o_groups` is 4, expected a divisor of num_attention_heads, 10");
    refused("attention_bias", json!(true), "`attention_bias` is true, expected false");
    refused("head_dim", json!(10), "`head_dim` is 10, expected qk_rope_head_dim, 12, and an even");
    refused("index_head_dim", json!(21), "`index_head_dim` is 21, expected qk_rope_head_dim");
    refused("scoring_func", json!("softmax"), "unsupported scores of experts: `softmax`");
    refused("topk_method", json!("greedy"), "unsupported expert choice: `greedy`");
    refused("sliding_window", json!(0), "`sliding_window` is 0");
    refused("hc_mult", json!(0), "`hc_mult` is 0");
    refused("hc_eps", json!(-1.0), "`hc_eps` is -1");
    refused("rope_scaling", json!({"type": "llama3"}), "unsupported rope type: `llama3`");
}

#[test]
fn what_deepseek_v41_does_not_compute_is_refused_by_its_field() {
    let refused = |field: &str, value: Value, expected: &str| {
        check_sample("deepseek_v41-f32", &json!({ field: value }), expected);
    };
    refused("gate_temp", json!(0.5), "`gate_temp` is 0.5, expected 1");
    refused("n_shared_experts", json!(2), "`n_shared_experts` is 2, expected 1");
    refused("head_dim", json!(48), "`head_dim` is 48, expected a multiple of 32");
    refused("index_head_dim", json!(40), "`index_head_dim` is 40, expected a multiple of 32");
    refused("kv_source_layer_ids", json!([1, 2, 3]), "`kv_source_layer_ids` is 2, expected layers");
    refused("kv_source_layer_ids", json!([3]), "`compress_ratios` is 2, expected 2 in the source");
    refused("compress_ratios", json!([0, 2, 1, 1, 1]), "`compress_ratios` is 1, expected 1 in the");
    refused("compress_ratios", json!([0, 2]), "`compress_ratios` is 2, expected 5 entries");
    // A layer without pools chooses none for others.
    let fields = json!({
        "compress_ratios": [0, 2, 0, 2, 2], "kv_source_layer_ids": [1],
        "index_source_layer_ids": [1, 2], "candidate_source_layer_id": -1,
    });
    check_sample(
        "deepseek_v41-f32",
        &fields,
        "`index_source_layer_ids` is 2, expected layers whose",
    );
    refused(
        "candidate_source_layer_id",
        json!(1),
        "`candidate_source_layer_id` is 1, expected the",
    );
    refused(
        "candidate_topk_blocks",
        json!(3),
        "`candidate_topk_blocks` is 3, expected blocks of 8",
    );
    refused("engram_layer_ids", json!([3, 1]), "`engram_layer_ids` is [3, 1], expected different");
    refused("engram_layer_ids", json!([1, 5]), "`engram_layer_ids` is [1, 5], expected different");
    refused("engram_num_embeddings", json!([242]), "`engram_num_embeddings` is 1, expected 2");
    refused("engram_num_embeddings", json!([239, 312]), "`engram_num_embeddings` is 239, expected");
    refused("engram_max_ngram_size", json!(1), "`engram_max_ngram_size` is 1, expected");
    refused("engram_pad_token_id", json!(200), "`engram_pad_token_id` is 200, expected less than");
    refused("scoring_func", json!("sigmoid"), "unsupported scores of experts: `sigmoid`");
    refused("hc_mult", json!(0), "`hc_mult` is 0");
}

#[test]
fn what_glm_next_does_not_compute_is_refused_by_its_field() {
    let refused = |field: &str, value: Value, expected: &str| {
        let mut text = crate::checkpoints::sample("glm5_next-f32").config["text_config"].clone();
        text[field] = value;
        check_sample("glm5_next-f32", &json!({"text_config": text}), expected);
    };
    refused("qk_rope_head_dim", json!(8), "`qk_rope_head_dim` is 8, expected 0");
    refused("mla_use_nope", json!(false), "`mla_use_nope` is false, expected true");
    refused("num_key_value_heads", json!(1), "`num_key_value_heads` is 1, expected num_att");
    refused("n_group", json!(4), "`n_group` is 4, expected 1");
    refused("scoring_func", json!("softmax"), "`scoring_func` is softmax, expected sigmoid");
    refused("hidden_act", json!("gelu"), "unsupported activation: `gelu`");
    refused("swiglu_limit", json!(0.0), "`swiglu_limit` is 0, expected a positive number");
    refused("hc_mult", json!(0), "`hc_mult` is 0");
    refused("hc_sinkhorn_iters", json!(0), "`hc_sinkhorn_iters` is 0");
    refused("hc_eps", json!(-1.0), "`hc_eps` is -1");
    refused("index_topk", json!(13), "`index_topk` is 13, expected a multiple of index_kpool, 3");
    refused("index_kpool_compress", json!(false), "`index_kpool_compress` is false");
    let tail = "index_kpool_always_select_tail";
    refused(tail, json!(false), "`index_kpool_always_select_tail` is false, expected true");
    refused("linear_lower_bound", json!(null), "`linear_lower_bound` is null");
    refused("linear_lower_bound", json!(2.0), "`-linear_lower_bound` is -2");
    refused("layer_types", json!(["full_attention"]), "`layer_types` is 1, expected 5 entries");
    refused("mlp_layer_types", json!(vec!["wide"; 5]), "unsupported kind of layer: `wide`");
    refused("linear_attn_config", json!({"safe_gate": false}), "safe_gate` is false");
}

#[test]
fn what_minimax_m3_does_not_compute_is_refused_by_its_field() {
    let text = || crate::checkpoints::sample("minimax_m3-f32").config["text_config"].clone();
    let check = |text: Value, expected: &str| {
        check_sample("minimax_m3-f32", &json!({"text_config": text}), expected);
    };
    let refused = |field: &str, value: Value, expected: &str| {
        let mut text = text();
        text[field] = value;
        check(text, expected);
    };
    refused("hidden_act", json!("silu"), "unsupported activation: `silu`");
    refused("scoring_func", json!("softmax"), "unsupported scoring_func: `softmax`");
    refused("qk_norm_type", json!("all"), "unsupported qk_norm_type: `all`");
    refused("attention_output_gate", json!(true), "unsupported attention_output_gate: `true`");
    refused("use_routing_bias", json!(false), "unsupported use_routing_bias: `false`");
    refused("swiglu_beta", json!(0.5), "unsupported swiglu_beta: `0.5`");
    refused("swiglu_limit", json!(0.0), "`swiglu_limit` is 0, expected a positive number");
    refused("moe_layer_freq", json!([0, 1]), "`moe_layer_freq` is 2, expected 4 entries");
    refused("mlp_layer_types", json!(vec!["wide"; 4]), "unsupported layer type: `wide`");
    refused("rope_parameters", json!({"rope_type": "yarn"}), "unsupported rope type: `yarn`");
    refused("rope_scaling", json!({"type": "linear"}), "unsupported rope type: `linear`");
    let choice = |field: &str, value: Value, expected: &str| {
        let mut text = text();
        text["sparse_attention_config"][field] = value;
        check(text, expected);
    };
    choice("use_sparse_attention", json!(false), "unsupported use_sparse_attention: `false`");
    choice("sparse_score_type", json!("mean"), "unsupported sparse_score_type: `mean`");
    choice("sparse_init_block", json!(1), "unsupported sparse_init_block: `1`");
    let heads = "`index_n_heads` is 2, expected 1 or num_key_value_heads, 4";
    choice("sparse_num_index_heads", json!(2), heads);
    choice("sparse_index_dim", json!(0), "`index_head_dim` is 0");
    choice("sparse_local_block", json!(4), "`index_local_blocks` is 4, expected at most");
    choice("sparse_attention_freq", json!([1]), "`sparse_attention_freq` is 1, expected 4 entries");
}

#[test]
fn what_differs_from_deepseek_is_refused() {
    let config = |model_type: &str, edit: Value| {
        let mut config = json!({
            "model_type": model_type, "hidden_size": 128, "num_hidden_layers": 2,
            "vocab_size": 200, "num_attention_heads": 4, "intermediate_size": 256,
            "rms_norm_eps": 1e-5, "kv_lora_rank": 64, "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8,
            "num_experts_per_tok": 2, "moe_intermediate_size": 64,
        });
        config.as_object_mut().unwrap().append(&mut edit.as_object().unwrap().clone());
        model_spec(&config)
    };
    let refused = |model_type, edit: Value, expected: &str| {
        let err = config(model_type, edit).unwrap_err().to_string();
        assert!(err.contains(expected), "`{expected}` is not in: {err}");
    };
    for model_type in ["deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"] {
        assert!(config(model_type, json!({})).is_ok(), "{model_type}");
        refused(model_type, json!({"scoring_func": "tanh"}), "`scoring_func` is tanh");
        refused(model_type, json!({"topk_method": "best"}), "expert choice: `best`");
        refused(model_type, json!({"n_group": 3}), "`n_group` is 3, expected a divisor of 8");
        refused(model_type, json!({"qk_rope_head_dim": 15}), "head_dim` is 15");
    }
    refused("deepseek_v2", json!({"norm_topk_prob": true}), "`norm_topk_prob` is true");
    refused("mistral4", json!({}), "missing field `rope_parameters`");
    refused("kimi_k25", json!({}), "missing field `text_config`");
}
