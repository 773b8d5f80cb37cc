//! Support for `functions` and `function_call`, which tools have replaced: such a request is first
//! rewritten to use tools, and its answer is written in the old form.

use jackalope_serving::error::ApiError;
use serde_json::{Map, Value, json};

/// Rewrites a request to use tools. Returns whether it was in the old form.
pub(super) fn rewrite(request: &mut Map<String, Value>) -> Result<bool, ApiError> {
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
        let is_unforced = choice.is_null() || choice == "none" || choice == "auto";
        if !is_unforced {
            return Err(ApiError::Needs { param: "function_call", needs: "functions" });
        }
        return Ok(has_old_messages);
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
    Ok(true)
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
