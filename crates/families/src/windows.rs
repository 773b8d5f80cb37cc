//! Layers by their types, and those that see only the last positions.

use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension, setting};

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

/// Returns which layers have attention, by their entry in `layer_types`: `supported` are the type of the
/// other layers, and `full_attention`.
///
/// # Errors
/// Fails if there are not as many entries as layers, or an entry is unknown.
pub(super) fn attention_layers(
    types: &[String],
    supported: &'static [&'static str],
    num_layers: usize,
) -> Result<Vec<bool>, SpecError> {
    if types.len() != num_layers {
        return Err(bad_value("layer_types", types.len(), format!("{num_layers} entries")));
    }
    let has_attention = |kind: &String| {
        setting("layer type", Some(kind), supported)?;
        Ok(kind == "full_attention")
    };
    types.iter().map(has_attention).collect()
}

/// Returns, for each layer, the number of the layer whose keys and values it reads: of the last
/// `num_shared` layers, the last one of its type before them.
///
/// # Errors
/// Fails if all layers would be shared, or a type occurs in those layers alone.
pub(super) fn sources(
    types: &[String],
    num_shared: usize,
) -> Result<Vec<Option<usize>>, SpecError> {
    let field = "num_kv_shared_layers";
    let num_own = types.len().checked_sub(num_shared).filter(|own| 0 < *own);
    let Some(num_own) = num_own else {
        return Err(bad_value(field, num_shared, format!("less than {} layers", types.len())));
    };
    let source = |layer_idx: usize| {
        if layer_idx < num_own {
            return Ok(None);
        }
        let kind = &types[layer_idx];
        match types[..num_own].iter().rposition(|it| it == kind) {
            Some(source) => Ok(Some(source)),
            None => {
                let expected = format!("a {kind} layer before the shared ones");
                Err(bad_value(field, num_shared, expected))
            }
        }
    };
    (0..types.len()).map(source).collect()
}
