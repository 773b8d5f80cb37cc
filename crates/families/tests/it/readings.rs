//! Configurations that state a thing twice, leave it out or state `null`: each family reads them as
//! mlx-lm does.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use jackalope_families::model_spec;
use jackalope_spec::{
    ExpertsSpec, FeedForward, HeadTable, LatentSpec, LayerSpec, Mixer, ModelSpec, RopeScaling,
    RopeSpec,
};
use serde_json::{Map, Value, json};

use crate::checkpoints::{sample, samples};

/// Returns the configurations of the samples by name.
fn configs() -> &'static BTreeMap<String, Value> {
    static CONFIGS: OnceLock<BTreeMap<String, Value>> = OnceLock::new();
    CONFIGS.get_or_init(|| samples().into_iter().map(|it| (it.name, it.config)).collect())
}

/// Returns the description of a sample after an edit of the fields of its language model.
#[track_caller]
fn spec_with(name: &str, edit: impl FnOnce(&mut Map<String, Value>)) -> ModelSpec {
    let mut config = configs()[name].clone();
    let has_part = config["text_config"].is_object();
    let fields = if has_part { &mut config["text_config"] } else { &mut config };
    edit(fields.as_object_mut().unwrap());
    model_spec(&config).unwrap()
}

/// Returns the description of a sample with other values of some fields.
#[track_caller]
fn spec_of(name: &str, edit: &Value) -> ModelSpec {
    spec_with(name, |fields| fields.extend(edit.as_object().unwrap().clone()))
}

fn latent(spec: &ModelSpec) -> &LatentSpec {
    let mut mixers = spec.layers.iter().map(|layer| &layer.mixer);
    mixers
        .find_map(|it| if let Mixer::Latent(latent) = it { Some(&**latent) } else { None })
        .unwrap()
}

fn rope(spec: &ModelSpec) -> &RopeSpec {
    let ropes = spec.layers.iter().filter_map(|layer| match &layer.mixer {
        Mixer::Attention(attention) => Some(&attention.rope),
        Mixer::Latent(latent) => latent.rope.as_ref(),
        _ => None,
    });
    ropes.into_iter().next().unwrap()
}

fn experts(spec: &ModelSpec) -> &ExpertsSpec {
    spec.layers.iter().find_map(LayerSpec::experts).unwrap()
}

#[test]
fn a_base_that_only_rope_parameters_states_is_taken() {
    for name in [
        "phi3",
        "phimoe",
        "hunyuan_v1_dense",
        "falcon_h1",
        "nemotron",
        "starcoder2",
        "step3p5",
        "cohere",
        "glm",
        "afmoe",
        "gemma",
    ] {
        let mut older = sample(&format!("{name}-f32")).config;
        let fields = older.as_object_mut().unwrap();
        fields.remove("rope_parameters");
        fields.insert("rope_theta".to_owned(), json!(123_456.0));
        let mut newer = fields.clone();
        let base = newer.remove("rope_theta");
        let scaling = newer.remove("rope_scaling").filter(|it| !it.is_null());
        let mut parameters = scaling.unwrap_or_else(|| json!({"rope_type": "default"}));
        parameters["rope_theta"] = base.unwrap();
        newer.insert("rope_parameters".to_owned(), parameters);
        let layers = |config: &Value| format!("{:?}", model_spec(config).unwrap().layers);
        assert_ne!(layers(&older), layers(&sample(&format!("{name}-f32")).config), "{name}");
        assert_eq!(layers(&newer.into()), layers(&older), "{name}");
    }
}

#[test]
fn rope_parameters_replace_the_older_fields() {
    let older = json!({"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 3.0},
        "partial_rotary_factor": 0.5});
    for name in ["ministral3-f32", "mistral4-f32", "glm_moe_dsa-f32", "qwen3_5-f32"] {
        let stated = spec_of(name, &json!({}));
        assert_eq!(spec_of(name, &older), stated, "{name}");
        assert_eq!(spec_of(name, &json!({"rope_scaling": {}})), stated, "{name}");
    }
    let base = |name: &str, parameters: Value| {
        let edit = json!({"position_embedding_type": "rope", "rope_theta": 1e4,
            "rope_scaling": null, "rope_parameters": parameters});
        rope(&spec_of(name, &edit)).theta
    };
    for name in ["granitemoehybrid-f32", "exaone_moe-f32", "lfm2-f32"] {
        assert_eq!(base(name, json!({"rope_theta": 500.0, "rope_type": "default"})), 500.0);
        assert_eq!(base(name, json!({"rope_type": "default"})), 1e4);
    }
    let granite = json!({"position_embedding_type": "rope", "rope_theta": 1e4,
        "rope_scaling": {"type": "linear", "factor": 3.0}, "rope_parameters": {"rope_theta": 500.0}});
    let granite = spec_of("granitemoehybrid-f32", &granite);
    assert_eq!((rope(&granite).theta, &rope(&granite).scaling), (500.0, &RopeScaling::None));
    let exaone = spec_with("exaone_moe-f32", |fields| {
        fields.remove("rope_theta");
        fields.insert("rope_parameters".to_owned(), json!({"rope_theta": 500.0}));
    });
    assert_eq!(rope(&exaone).theta, 500.0);
}

#[test]
fn an_absent_base_has_the_default_of_mlx_lm() {
    let qwen = |parameters: Option<Value>| {
        let spec = spec_with("qwen3_5-f32", |fields| {
            fields.insert("rope_theta".to_owned(), json!(500.0));
            fields.insert("partial_rotary_factor".to_owned(), json!(0.5));
            fields.remove("rope_parameters");
            fields.extend(parameters.map(|it| ("rope_parameters".to_owned(), it)));
        });
        (rope(&spec).theta, rope(&spec).dims)
    };
    assert_eq!(qwen(None), (1e5, 16));
    assert_eq!(qwen(Some(json!({"rope_type": "default"}))), (1e5, 16));
    assert_eq!(qwen(Some(json!({"rope_theta": 1e7}))), (1e7, 16));
    assert_eq!(qwen(Some(Value::Null)), (500.0, 32));
    assert_eq!(qwen(Some(json!({}))), (500.0, 32));
    let mistral = spec_with("mistral4-f32", |fields| {
        fields.insert("rope_theta".to_owned(), json!(500.0));
        fields["rope_parameters"].as_object_mut().unwrap().remove("rope_theta");
    });
    assert_eq!(rope(&mistral).theta, 1e5);
}

#[test]
fn the_names_of_the_family_win_over_those_of_others() {
    let epsilons = [
        "nemotron_h-f32",
        "lfm2_moe-f32",
        "mimo_v2_flash-f32",
        "mamba2-uneven-f32",
        "cohere-f32",
        "cohere2-f32",
        "qwen-f32",
        "stablelm-f32",
        "starcoder2-f32",
        "nemotron-f32",
        "exaone-f32",
    ];
    for name in epsilons {
        let stated = spec_of(name, &json!({}));
        assert_eq!(spec_of(name, &json!({"rms_norm_eps": 0.5})), stated, "{name}");
    }
    let stray = json!({"num_hidden_layers": 5, "num_experts_per_tok": 1, "intermediate_size": 64,
        "moe_intermediate_size": 64});
    let longcat = spec_of("longcat_flash-f32", &json!({}));
    assert_eq!(longcat.layers.len(), 2);
    assert_eq!(experts(&longcat).experts_per_token, 6);
    assert_eq!(spec_of("longcat_flash-f32", &stray), longcat);
}

#[test]
fn of_two_names_of_one_field_that_of_mlx_lm_wins() {
    let states = |edit: Value| {
        let spec = spec_of("mamba2-uneven-f32", &edit);
        let Mixer::StateSpace(space) = &spec.layers[0].mixer else { panic!("a state space") };
        space.sizes.state_dim
    };
    assert_eq!(states(json!({})), 24);
    assert_eq!(states(json!({"ssm_state_size": 40})), 40);
    assert_eq!(states(json!({"ssm_state_size": null})), 24);
    let lfm2 = spec_of("lfm2-f32", &json!({}));
    assert_eq!(spec_of("lfm2-f32", &json!({"intermediate_size": 64})), lfm2);
    let renamed = json!({"block_ff_dim": null, "intermediate_size": 300});
    assert_eq!(spec_of("lfm2-f32", &renamed), lfm2);
    let layers = |blocks: Value, types: Value| {
        let edit = json!({"hybrid_override_pattern": null, "layers_block_type": blocks,
            "layer_types": types});
        spec_of("nemotron_h-f32", &edit).layers.len()
    };
    assert_eq!(layers(json!(["mamba"]), json!(["mamba", "moe"])), 1);
    assert_eq!(layers(json!([]), json!(["mamba", "moe"])), 2);
    assert_eq!(layers(Value::Null, json!(["mamba", "moe"])), 2);
}

#[test]
fn glm_lite_has_the_defaults_of_mlx_lm() {
    let spec = spec_with("glm4_moe_lite-f32", |fields| {
        fields.remove("routed_scaling_factor");
        fields.remove("first_k_dense_replace");
    });
    assert_eq!(experts(&spec).router.scale, 1.8);
    let is_dense = |layer: usize| matches!(spec.layers[layer].feed_forward, FeedForward::Mlp(_));
    assert!(is_dense(0) && !is_dense(1));
    let dense = spec_of("glm4_moe_lite-f32", &json!({"n_routed_experts": null}));
    assert!(dense.layers.iter().all(|it| matches!(it.feed_forward, FeedForward::Mlp(_))));
}

#[test]
fn a_stored_head_is_used_where_mlx_lm_never_ties() {
    let tied = |name: &str| spec_of(name, &json!({"tie_word_embeddings": true})).head_table;
    let with_head = [
        "glm4_moe-f32",
        "solar_open-f32",
        "deepseek_v2-f32",
        "deepseek_v3-f32",
        "deepseek_v32-f32",
        "glm_moe_dsa-f32",
        "glm4_moe_lite-f32",
        "kimi_k25-f32",
        "kimi_vl-f32",
        "gpt_oss-f32",
        "longcat_flash-f32",
        "llama4-f32",
        "qwen2_moe-f32",
        "glm4-f32",
        "glm4v-f32",
        "deepseek_v4-f32",
        "deepseek_v41-f32",
    ];
    for name in with_head {
        assert_eq!(tied(name), HeadTable::IfPresent, "{name}");
        let own = spec_of(name, &json!({"tie_word_embeddings": false}));
        assert_eq!(own.head_table, HeadTable::Own, "{name}");
    }
    for name in ["llama-f32", "dots1-f32", "mistral4-f32"] {
        assert_eq!(tied(name), HeadTable::Tied, "{name}");
    }
}

#[test]
fn the_type_of_an_extension_counts_for_scores_as_in_mlx_lm() {
    let scaling = json!({"rope_type": "default", "factor": 8.0, "mscale_all_dim": 1.0});
    let plain = |name: &str| latent(&spec_of(name, &json!({"rope_scaling": null}))).scale;
    let scaled = |name: &str| latent(&spec_of(name, &json!({"rope_scaling": scaling}))).scale;
    assert_eq!(scaled("bailing_hybrid-f32"), plain("bailing_hybrid-f32"));
    for name in ["deepseek_v3-f32", "longcat_flash-f32"] {
        let factor = 0.1 * 8f64.ln() + 1.0;
        assert!((scaled(name) / plain(name) - factor * factor).abs() < 1e-9, "{name}");
    }
    let mistral = spec_with("mistral4-f32", |fields| {
        fields["rope_parameters"]["type"] = "default".into();
    });
    assert_eq!(latent(&mistral).scale, 1.0 / 36f64.sqrt());
    let linear = json!({"rope_scaling": {"type": "linear", "factor": 8.0}});
    let spec = spec_of("deepseek_v2-f32", &linear);
    let scaling = &rope(&spec).scaling;
    assert!(matches!(scaling, RopeScaling::Yarn { factor: 8.0, .. }), "{scaling:?}");
}

#[test]
fn pairs_with_factors_of_their_own_are_of_both_halves() {
    let scaling = |pairs: usize| {
        json!({"rope_traditional": true, "rope_scaling": {
            "rope_type": "longrope", "original_max_position_embeddings": 32,
            "short_factor": vec![1.0; pairs], "long_factor": vec![1.5; pairs],
        }})
    };
    for name in ["llama-f32", "deepseek_v3-f32", "bailing_hybrid-f32", "deepseek_v32-f32"] {
        let pairs = rope(&spec_of(name, &json!({}))).dims / 2;
        if name == "bailing_hybrid-f32" {
            // Its other layers rotate as many elements.
            let edit = json!({"partial_rotary_factor": 0.5, "head_dim": 24});
            assert_eq!(rope(&spec_of(name, &edit)).dims / 2, pairs);
        }
        let spec = spec_of(name, &scaling(pairs));
        assert!(!rope(&spec).is_traditional, "{name}");
        if let Some(indexer) = spec.layers.iter().find_map(|layer| match &layer.mixer {
            Mixer::Latent(latent) => latent.indexer(),
            _ => None,
        }) {
            assert!(indexer.rope.as_ref().is_some_and(|rope| !rope.is_traditional), "{name}");
        }
    }
    assert!(rope(&spec_of("llama-f32", &json!({"rope_traditional": true}))).is_traditional);
    assert!(!rope(&spec_of("nemotron-f32", &json!({"rope_traditional": true}))).is_traditional);
    let linear = json!({"rope_scaling": {"type": "linear", "factor": 2.0}});
    assert_eq!(rope(&spec_of("qwen2_moe-f32", &linear)).scaling, RopeScaling::None);
}

#[test]
fn null_is_false_where_mlx_lm_takes_it_so() {
    let names = [
        "deepseek_v3-f32",
        "deepseek_v32-f32",
        "kimi_vl-f32",
        "glm4_moe_lite-f32",
        "glm_moe_dsa-f32",
        "mistral4-f32",
    ];
    for name in names {
        let sums = |value: Value| {
            let edit = json!({"norm_topk_prob": value});
            experts(&spec_of(name, &edit)).router.normalization_eps
        };
        assert_eq!(sums(Value::Null), None, "{name}");
        assert_eq!(sums(json!(false)), None, "{name}");
        assert!(sums(json!(true)).is_some(), "{name}");
    }
    for name in ["falcon_h1-f32", "gemma4_text-q4-f32", "granitemoehybrid-f32"] {
        let head = spec_of(name, &json!({"tie_word_embeddings": null})).head_table;
        assert_eq!(head, HeadTable::Own, "{name}");
        let spec = spec_with(name, |fields| {
            fields.remove("tie_word_embeddings");
        });
        assert_eq!(spec.head_table, HeadTable::Tied, "{name}");
    }
    let growth = |edit: Value| {
        let spec = spec_of("llama4-f32", &edit);
        let Mixer::Attention(attention) = &spec.layers[3].mixer else { panic!("attention") };
        attention.query_growth
    };
    assert!(growth(json!({})).is_some());
    assert_eq!(growth(json!({"attn_temperature_tuning": null})), None);
    for (name, field) in
        [("glm4_moe-f32", "n_shared_experts"), ("exaone_moe-f32", "num_shared_experts")]
    {
        assert_eq!(experts(&spec_of(name, &json!({field: null}))).shared, None, "{name}");
    }
}

#[test]
fn a_value_of_none_of_several_types_is_reported_with_its_field() {
    for (name, field, expected) in [
        ("ernie4_5_moe", "moe_layer_start_index", "a number or a list of numbers"),
        ("nemotron_h", "hybrid_override_pattern", "letters in one string or in a list"),
        ("hunyuan", "moe_intermediate_size", "a number or a list of numbers"),
        ("llama4", "attn_temperature_tuning", "true, false or a number"),
        ("gemma3n", "intermediate_size", "a number or a list of numbers"),
        ("glm_moe_dsa", "index_topk_pattern", "letters in one string or a list of words"),
    ] {
        let sample = configs().iter().find(|(_, it)| {
            let fields = if it["text_config"].is_object() { &it["text_config"] } else { it };
            fields["model_type"].as_str().is_some_and(|it| it.starts_with(name))
        });
        let mut config = sample.expect(name).1.clone();
        let has_part = config["text_config"].is_object();
        let fields = if has_part { &mut config["text_config"] } else { &mut config };
        fields[field] = json!({"other": [null]});
        let error = model_spec(&config).unwrap_err().to_string();
        assert!(error.contains(&format!("`{field}`: expected {expected}")), "{name}: {error}");
    }
}

#[test]
fn deepseek_v41_does_not_normalise_the_score_of_a_single_expert() {
    let sums = |name: &str, per_token: u32| {
        let spec = spec_of(name, &json!({"num_experts_per_tok": per_token}));
        experts(&spec).router.normalization_eps
    };
    assert_eq!(sums("deepseek_v41-f32", 1), None);
    assert_eq!(sums("deepseek_v41-f32", 2), Some(1e-20));
    assert_eq!(sums("deepseek_v4-f32", 1), Some(1e-20), "DeepSeek V4 always normalises");
}

#[test]
fn hunyuan_with_a_single_expert_is_dense() {
    let each = json!({"num_experts": 1, "moe_topk": [1, 2, 3], "moe_intermediate_size": 64});
    for edit in [json!({"num_experts": 1}), each] {
        let spec = spec_of("hunyuan-f32", &edit);
        for layer in &spec.layers {
            let FeedForward::Mlp(mlp) = &layer.feed_forward else { panic!("a dense block") };
            assert_eq!(mlp.inner, 96);
        }
    }
}

#[test]
fn hunyuan_layers_share_keys_and_values_in_groups_of_the_share_factor() {
    let sources = |edit: Value| -> Vec<Option<usize>> {
        let spec = spec_of("hunyuan-shared-f32", &edit);
        spec.layers.iter().map(|layer| layer.mixer.source_layer()).collect()
    };
    let none = vec![None; 5];
    assert_eq!(sources(json!({})), [None, Some(0), None, Some(2), None]);
    assert_eq!(sources(json!({"cla_share_factor": 4})), [None, Some(0), Some(0), Some(0), None]);
    assert_eq!(sources(json!({"cla_share_factor": 1})), none);
    assert_eq!(sources(json!({"use_cla": false})), none);
    let mut config = configs()["hunyuan-shared-f32"].clone();
    config["cla_share_factor"] = 0.into();
    let refused = model_spec(&config).unwrap_err().to_string();
    assert!(refused.contains("`cla_share_factor` is 0"), "{refused}");
}

#[test]
fn helium_ignores_a_width_of_heads() {
    let stated = spec_of("helium-f32", &json!({}));
    for head_dim in [json!(64), Value::Null] {
        assert_eq!(spec_of("helium-f32", &json!({"head_dim": head_dim})), stated);
    }
}

#[test]
fn experts_of_olmoe_may_have_biases() {
    let olmoe = spec_of("olmoe-f32", &json!({"mlp_bias": true}));
    assert!(experts(&olmoe).has_bias && !experts(&olmoe).router.has_bias);
}

#[test]
fn all_products_of_qwen_may_have_biases() {
    let qwen = spec_of("qwen-f32", &json!({"no_bias": false}));
    let (FeedForward::Mlp(mlp), Mixer::Attention(attention)) =
        (&qwen.layers[0].feed_forward, &qwen.layers[0].mixer)
    else {
        panic!("a dense layer with attention")
    };
    assert!(mlp.has_bias && attention.has_output_bias && qwen.head_bias.is_some());
}
