//! Errors in OpenAI's form: the error object, which names the parameter, and a top-level `detail` for
//! clients of older servers.
//!
//! ```json
//! {"error": {"message": "…", "type": "invalid_request_error", "param": "top_p", "code": null},
//!  "detail": "…"}
//! ```

use jackalope_serving::error::ApiError;
use jackalope_serving::generate::EarlyStream;
use jackalope_serving::sse;
use serde_json::{Value, json};

/// Early streams of OpenAI's API: keep-alives are comments, an error is the only event.
pub(super) const EARLY: EarlyStream = EarlyStream {
    push_keep_alive: |buffer| buffer.extend_from_slice(sse::KEEP_ALIVE.as_bytes()),
    push_error,
    foreign_names: None,
};

/// Appends the error that ends a stream.
pub(super) fn push_error(err: &ApiError, buffer: &mut Vec<u8>) {
    sse::push_event(buffer, &to_json(err));
}

/// Returns the body of the response to a request that failed with `err`.
pub(crate) fn to_json(err: &ApiError) -> Value {
    let facts = err.facts();
    let message = err.message();
    let mut body = json!({
        "error": {
            "message": message,
            "type": facts.kind,
            "param": facts.param,
            "code": facts.code,
        },
        "detail": message,
    });
    if let ApiError::ModelLoading { model, state, loaded_bytes, retry_after, .. } = err {
        let progress = loaded_bytes.map(|(done, total)| done as f64 / total.max(1) as f64);
        body["loading"] = json!({
            "model": model,
            "state": state,
            "progress": progress,
            "bytes_loaded": loaded_bytes.map(|it| it.0),
            "total_bytes": loaded_bytes.map(|it| it.1),
            "eta_seconds": retry_after.as_secs(),
        });
    }
    body
}
