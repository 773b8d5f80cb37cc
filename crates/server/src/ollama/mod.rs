//! Ollama's API, under `/api`: lines of JSON, durations in nanoseconds, models with details.
//!
//! ```text
//!  bytes ──request──▶ wire types ──options, chat, generate──▶ Job ──generate──▶ lines or one object
//!                     untrusted     every check                   format
//! ```

pub(crate) mod chat;
pub(crate) mod embed;
mod format;
pub(crate) mod generate;
mod lifetime;
pub(crate) mod models;
mod options;
pub(crate) mod pull;
mod request;
mod schema;

use crate::ServerState;
use crate::error::ApiError;
use crate::models::ModelStatus;
use crate::registry::Serving;

pub use pull::{PullProgress, Puller, RemoveError, RemoveFuture};

/// The tag that a name without one stands for.
const LATEST: &str = ":latest";

/// Opens the model of a request, loading it if necessary.
async fn open(state: &ServerState, name: Option<&str>) -> Result<Serving, ApiError> {
    state.open(name.map(bare)).await
}

/// The status of the model of this name, or of the default one; loads nothing.
fn known(state: &ServerState, name: Option<&str>) -> Result<ModelStatus, ApiError> {
    state.models().named(bare(name.unwrap_or("default")))
}

/// A name without the default tag.
fn bare(name: &str) -> &str {
    name.strip_suffix(LATEST).unwrap_or(name)
}

/// A model's name with its tag, as this API writes it.
fn full_name(id: &str) -> String {
    if id.contains(':') { id.to_owned() } else { format!("{id}{LATEST}") }
}
