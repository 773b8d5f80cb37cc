//! Errors in Ollama's form.

use jackalope_serving::error::{ALIAS, ApiError, shortened};
use serde_json::{Value, json};

/// Returns the body of the response to a request that failed with `err`, which is also the last
/// line of a stream that fails.
pub(crate) fn to_json(err: &ApiError) -> Value {
    json!({"error": message(err)})
}

/// Returns the message of an error. For an unknown model it has the words of Ollama's own message,
/// because clients search for them.
fn message(err: &ApiError) -> String {
    match err {
        ApiError::UnknownModel { found, served } => {
            let found = shortened(found);
            format!("model '{found}' not found\nhint: this server serves {served}; {ALIAS}")
        }
        err => err.message(),
    }
}
