//! `rope_parameters`, in which newer checkpoints state their rotation, beside the fields that older
//! ones have outside of it.

use serde_json::{Map, Value, json};

/// Fields that are ignored where `rope_parameters` states the rotation.
const OLDER: [&str; 2] = ["rope_scaling", "partial_rotary_factor"];

/// Returns `config` for a family in which `rope_parameters` states the whole rotation: if it is not
/// empty, the fields outside of it are removed. Without a base in it, the base is `default_theta`,
/// or else the one outside of it.
pub fn from_parameters_alone(config: &Value, default_theta: Option<f64>) -> Value {
    let mut fields = config.as_object().cloned().unwrap_or_default();
    let Some(parameters) = parameters(&fields) else { return Value::Object(fields) };
    let default_theta = default_theta.map(|theta| json!(theta));
    if let Some(theta) = base(parameters).or(default_theta) {
        fields.insert("rope_theta".to_owned(), theta);
    }
    for field in OLDER {
        fields.remove(field);
    }
    Value::Object(fields)
}

/// Returns `config` for a family that takes the base from `rope_parameters` if it is there, and
/// everything else from the fields outside of it.
pub fn with_base_of_parameters(config: &Value) -> Value {
    let mut fields = config.as_object().cloned().unwrap_or_default();
    if let Some(theta) = parameters(&fields).and_then(base) {
        fields.insert("rope_theta".to_owned(), theta);
    }
    Value::Object(fields)
}

fn parameters(fields: &Map<String, Value>) -> Option<&Map<String, Value>> {
    let parameters = fields.get("rope_parameters").and_then(Value::as_object);
    parameters.filter(|parameters| !parameters.is_empty())
}

fn base(parameters: &Map<String, Value>) -> Option<Value> {
    parameters.get("rope_theta").filter(|theta| !theta.is_null()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_replace_the_older_fields() {
        let config = |parameters: Value| {
            json!({"rope_theta": 1e4, "rope_scaling": {}, "partial_rotary_factor": 0.5,
                "rope_parameters": parameters})
        };
        let stated = json!({"rope_theta": 5e5});
        let expected = json!({"rope_theta": 5e5, "rope_parameters": stated});
        assert_eq!(from_parameters_alone(&config(stated), Some(1e5)), expected);
        let without = json!({"rope_type": "default"});
        let fields = from_parameters_alone(&config(without.clone()), Some(1e5));
        assert_eq!(fields, json!({"rope_theta": 1e5, "rope_parameters": without}));
        let fields = from_parameters_alone(&config(without.clone()), None);
        assert_eq!(fields, json!({"rope_theta": 1e4, "rope_parameters": without}));
        for none in [json!({}), Value::Null] {
            assert_eq!(from_parameters_alone(&config(none.clone()), Some(1e5)), config(none));
        }
    }

    #[test]
    fn only_the_base_may_come_from_the_parameters() {
        let config = |theta: f64, parameters: Value| json!({"rope_theta": theta, "rope_scaling": {}, "rope_parameters": parameters});
        let stated = json!({"rope_theta": 5e5, "rope_type": "yarn"});
        let fields = with_base_of_parameters(&config(1e4, stated.clone()));
        assert_eq!(fields, config(5e5, stated));
        let fields = with_base_of_parameters(&config(1e4, json!({"rope_theta": null})));
        assert_eq!(fields, config(1e4, json!({"rope_theta": null})));
    }
}
