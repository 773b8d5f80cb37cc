//! Names of models, which may have a tag.

use jackalope_serving::error::ApiError;
use jackalope_serving::models::{LATEST, ModelStatus};
use jackalope_serving::state::ServingState;

/// The status of the model of this name, or of the default one; loads nothing.
pub(super) fn known(state: &ServingState, name: Option<&str>) -> Result<ModelStatus, ApiError> {
    state.models().named(name.unwrap_or("default"))
}

/// A name without the default tag.
pub(super) fn bare(name: &str) -> &str {
    name.strip_suffix(LATEST).unwrap_or(name)
}

/// A model's name with its tag, as this API writes it.
pub(super) fn full_name(id: &str) -> String {
    if id.contains(':') { id.to_owned() } else { format!("{id}{LATEST}") }
}
