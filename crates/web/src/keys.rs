//! The list of keys.

use jackalope_serving::auth::ApiKeys;
use jackalope_serving::state::ServingState;
use serde_json::{Value, json};

/// Returns the content of `/v1/keys`: the keys, with what each has used since the start.
pub fn key_list(api_keys: &ApiKeys, state: &ServingState) -> Value {
    let mut keys = api_keys.list();
    let totals = state.journal().totals().keys;
    for key in keys.as_array_mut().into_iter().flatten() {
        let used = key["name"].as_str().and_then(|name| totals.get(name));
        key["requests"] = used.map_or(0, |it| it.requests).into();
        key["prompt_tokens"] = used.map_or(0, |it| it.prompt_tokens).into();
        key["completion_tokens"] = used.map_or(0, |it| it.completion_tokens).into();
        key["limited"] = used.map_or(0, |it| it.limited).into();
    }
    json!({
        "required": !api_keys.is_empty(),
        "editable": api_keys.is_editable(),
        "keys": keys,
    })
}
