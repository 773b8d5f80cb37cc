//! Layers that see only the last positions.

use crate::config::{bad_value, dimension};
use crate::error::SpecError;

/// Returns the window of each layer by its entry in `layer_types`; `None` if it sees all positions.
///
/// # Errors
/// Fails if there are not as many entries as layers, an entry is unknown, or a window is not stated.
pub(super) fn windows(
    types: &[String],
    sliding_window: Option<u32>,
    num_layers: usize,
) -> Result<Vec<Option<usize>>, SpecError> {
    if types.len() != num_layers {
        return Err(bad_value("layer_types", types.len(), format!("{num_layers} entries")));
    }
    let window = |kind: &String| match kind.as_str() {
        "full_attention" => Ok(None),
        "sliding_attention" => dimension("sliding_window", sliding_window.unwrap_or(0)).map(Some),
        other => {
            let supported = &["full_attention", "sliding_attention"];
            let (what, found) = ("layer type", other.to_owned());
            Err(SpecError::Setting { what, found, supported })
        }
    };
    types.iter().map(window).collect()
}
