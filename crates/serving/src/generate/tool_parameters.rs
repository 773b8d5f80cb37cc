//! Checks on the schemas of tools' parameters.

use serde_json::{Value, json};

use crate::error::ApiError;

/// Checks that the schema of a tool's parameters is one of objects, because the arguments of a call
/// are always an object. `param` returns the name of the schema's field.
///
/// # Errors
/// Returns an error if the schema is not an object, or if its `type` is not `object`.
pub fn check_tool_parameters(
    parameters: &Value,
    param: impl FnOnce() -> String,
) -> Result<(), ApiError> {
    let kind = match parameters {
        Value::Null => return Ok(()),
        Value::Object(schema) => schema.get("type").unwrap_or(&Value::Null),
        _ => {
            let reason = "it must be an object: the schema of the arguments".to_owned();
            return Err(ApiError::WrongType { param: param(), reason });
        }
    };
    if kind.is_null() || *kind == "object" || *kind == json!(["object"]) {
        return Ok(());
    }
    let expected = "\"object\", because the arguments of a call are an object";
    Err(ApiError::out_of_range(format!("{}.type", param()), kind, expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_a_schema_of_objects() {
        let check = |schema: Value| check_tool_parameters(&schema, || "p".to_owned());
        for schema in [
            json!(null),
            json!({}),
            json!({"properties": {"a": {"type": "string"}}}),
            json!({"type": null}),
            json!({"type": "object"}),
            json!({"type": ["object"]}),
        ] {
            assert!(check(schema.clone()).is_ok(), "{schema}");
        }
        for schema in [json!({"type": "string"}), json!({"type": ["object", "null"]})] {
            let message = check(schema).unwrap_err().to_string();
            assert!(message.starts_with("p.type is ") && message.contains("object"), "{message}");
        }
        for schema in [json!("object"), json!([]), json!(true)] {
            assert!(
                matches!(check(schema), Err(ApiError::WrongType { param, .. }) if param == "p")
            );
        }
    }
}
