//! The kinds of GLM-5 Next's layers.

use super::config::Own;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, setting};

impl Own {
    /// Returns for each layer whether it has latent attention: every fourth if that is not stated.
    pub(super) fn attend(&self, num_layers: usize) -> Result<Vec<bool>, SpecError> {
        const KINDS: &[&str] = &["linear_attention", "deepseek_sparse_attention", "full_attention"];
        let Some(kinds) = &self.layer_types else {
            return Ok((0..num_layers).map(|idx| idx % 4 == 3).collect());
        };
        kinds_of("layer_types", kinds, num_layers, KINDS)
    }

    /// Returns for each layer whether it has experts: all after the first ones if that is not stated.
    pub(super) fn are_sparse(
        &self,
        num_layers: usize,
        num_dense: usize,
    ) -> Result<Vec<bool>, SpecError> {
        let Some(kinds) = &self.mlp_layer_types else {
            return Ok((0..num_layers).map(|idx| num_dense <= idx).collect());
        };
        kinds_of("mlp_layer_types", kinds, num_layers, &["dense", "sparse"])
    }
}

/// Returns for each entry of a list, one for each layer, whether it is not the first of `kinds`.
fn kinds_of(
    field: &'static str,
    found: &[String],
    num_layers: usize,
    kinds: &'static [&'static str],
) -> Result<Vec<bool>, SpecError> {
    if found.len() != num_layers {
        return Err(bad_value(field, found.len(), format!("{num_layers} entries")));
    }
    let is_other = |kind: &String| {
        setting("kind of layer", Some(kind), kinds)?;
        Ok(kind != kinds[0])
    };
    found.iter().map(is_other).collect()
}
