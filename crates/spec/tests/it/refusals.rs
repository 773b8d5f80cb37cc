//! Configurations that describe no model: each error names the field or the setting.

use jackalope_spec::{ModelSpec, SpecError, computed_types};
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
    let err = ModelSpec::from_config(&llama(edit)).unwrap_err();
    assert!(err.to_string().contains(expected), "`{expected}` is not in: {err}");
    assert_eq!(err.is_unsupported(), is_unsupported, "{err}");
}

#[test]
fn what_is_not_supported_is_refused_with_the_choices() {
    assert!(ModelSpec::from_config(&llama(&json!({}))).is_ok());
    let SpecError::Architecture { found, supported } =
        ModelSpec::from_config(&llama(&json!({"model_type": "mamba"}))).unwrap_err()
    else {
        panic!("an unknown architecture")
    };
    assert_eq!((found.as_str(), supported), ("mamba", computed_types()));
    check(&json!({"model_file": "mine.py"}), "`mine.py`", true);
    check(&json!({"hidden_act": "gelu"}), "unsupported activation: `gelu`", true);
    check(&json!({"rope_scaling": {"type": "spiral"}}), "unsupported rope type: `spiral`", true);
    let awq = json!({"quantization_config": {"quant_method": "awq"}});
    check(&awq, "unsupported quantisation: `awq`", true);
    check(
        &json!({"layer_types": ["chunked_attention", "full_attention"]}),
        "`chunked_attention`",
        true,
    );
}

#[test]
fn mlx_quantisation_hides_what_transformers_says_of_it() {
    let both = json!({"quantization": {"bits": 4, "group_size": 64},
        "quantization_config": {"bits": 4, "quant_method": "gptq"}});
    let spec = ModelSpec::from_config(&llama(&both)).unwrap();
    let most = spec.quantization.most.unwrap();
    assert_eq!((most.bits, most.group_size), (4, 64));
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
    assert!(ModelSpec::from_config(&json!({})).unwrap_err().to_string().contains("model_type"));
    assert!(ModelSpec::from_config(&json!([])).is_err());
}
