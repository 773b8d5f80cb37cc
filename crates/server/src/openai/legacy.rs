//! Support for `functions` and `function_call`, which tools have replaced: such a request is first
//! rewritten to use tools, and its answer is written in the old form.

use axum::body::Bytes;
use serde_json::{Value, json};

use crate::error::ApiError;

/// The fields that identify a request in the old form.
const MARKS: [&str; 2] = ["\"functions\"", "\"function_call\""];

/// Rewrites a request to use tools; none if it is not in the old form.
pub(super) fn rewritten(body: &[u8]) -> Result<Option<Bytes>, ApiError> {
    let contains = |mark: &&str| body.windows(mark.len()).any(|found| found == mark.as_bytes());
    if !MARKS.iter().any(contains) {
        return Ok(None);
    }
    // Invalid JSON is reported by the typed parser later.
    let Ok(Value::Object(mut request)) = serde_json::from_slice(body) else { return Ok(None) };
    let functions = request.remove("functions").unwrap_or_default();
    let choice = request.remove("function_call").unwrap_or_default();
    let messages = request.get_mut("messages").and_then(Value::as_array_mut);
    let has_old_messages = messages.is_some_and(|messages| rewrite_messages(messages));
    let functions = match functions {
        Value::Null => Vec::new(),
        Value::Array(functions) => functions,
        _ => {
            let (param, reason) = ("functions".to_owned(), "expected a list".to_owned());
            return Err(ApiError::WrongType { param, reason });
        }
    };
    if functions.is_empty() {
        let asks_nothing = choice.is_null() || choice == "none" || choice == "auto";
        return match (asks_nothing, has_old_messages) {
            (false, _) => Err(ApiError::Needs { param: "function_call", needs: "functions" }),
            (true, false) => Ok(None),
            (true, true) => Ok(Some(Bytes::from(Value::Object(request).to_string()))),
        };
    }
    if request.get("tools").is_some_and(|tools| !tools.is_null()) {
        return Err(ApiError::Needs { param: "functions", needs: "tools to be absent" });
    }
    let tool = |function: Value| json!({"type": "function", "function": function});
    request.insert("tools".to_owned(), functions.into_iter().map(tool).collect());
    // The old form has room for only one call per answer.
    request.insert("parallel_tool_calls".to_owned(), false.into());
    let choice = match choice {
        Value::Object(named) => json!({"type": "function", "function": named}),
        choice => choice,
    };
    request.insert("tool_choice".to_owned(), choice);
    Ok(Some(Bytes::from(Value::Object(request).to_string())))
}

/// Rewrites calls and their results; returns whether there were any.
fn rewrite_messages(messages: &mut [Value]) -> bool {
    let mut is_changed = false;
    let mut last_call_id = String::new();
    for (idx, message) in messages.iter_mut().enumerate() {
        let Value::Object(fields) = message else { continue };
        if let Some(call) = fields.remove("function_call").filter(|call| !call.is_null()) {
            last_call_id = format!("call_{idx}");
            let call = json!({"id": last_call_id, "type": "function", "function": call});
            fields.insert("tool_calls".to_owned(), json!([call]));
            is_changed = true;
        }
        if fields.get("role").is_some_and(|role| role == "function") {
            fields.insert("role".to_owned(), "tool".into());
            fields.insert("tool_call_id".to_owned(), last_call_id.clone().into());
            is_changed = true;
        }
    }
    is_changed
}
