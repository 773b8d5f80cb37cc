//! Errors in Ollama's form.

use jackalope_serving::error::{ALIAS, ApiError, shortened};
use serde_json::{Value, json};

/// The body of a response, and the last line of a failed stream.
pub(crate) fn to_json(err: &ApiError) -> Value {
    json!({"error": message(err)})
}

/// Clients of Ollama search the message for these exact words.
fn message(err: &ApiError) -> String {
    match err {
        ApiError::UnknownModel { found, served } => {
            let found = shortened(found);
            format!("model '{found}' not found\nhint: this server serves {served}; {ALIAS}")
        }
        err => err.message(),
    }
}
