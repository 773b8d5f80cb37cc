//! The sampling parameters that a checkpoint recommends.

use std::path::Path;

use serde::Deserialize;

use crate::error::TextLoadError;
use crate::files;

/// The sampling parameters in `generation_config.json`. Absent fields are `None`: the checkpoint
/// recommends nothing.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
pub struct GenerationDefaults {
    /// `false` recommends greedy sampling.
    pub do_sample: Option<bool>,
    /// Divisor of the logits.
    pub temperature: Option<f32>,
    /// Probability mass of nucleus sampling.
    pub top_p: Option<f32>,
    /// Number of most likely tokens kept; 0 keeps all.
    pub top_k: Option<u32>,
    /// Minimum probability of a token, relative to the most likely token's.
    pub min_p: Option<f32>,
    /// Factor that weakens tokens that occurred before; 1 disables it.
    pub repetition_penalty: Option<f32>,
}

impl GenerationDefaults {
    /// Reads `generation_config.json` of the checkpoint in `dir`; without that file, all fields are
    /// `None`.
    pub(crate) fn load(dir: &Path) -> Result<GenerationDefaults, TextLoadError> {
        let path = dir.join("generation_config.json");
        let found: Option<GenerationDefaults> = files::read_json(&path, files::CONFIG_BYTES_MAX)?;
        let found = found.unwrap_or_default();
        let all = [
            ("temperature", found.temperature, 0.0, 2.0),
            ("top_p", found.top_p, 0.0, 1.0),
            ("min_p", found.min_p, 0.0, 1.0),
            ("repetition_penalty", found.repetition_penalty, f32::MIN_POSITIVE, 10.0),
        ];
        for (name, value, low, high) in all {
            if value.is_some_and(|value| !(low..=high).contains(&value)) {
                let found = value.unwrap_or_default();
                return Err(TextLoadError::OutOfRange { path, name, found, low, high });
            }
        }
        Ok(found)
    }

    /// Returns the recommended temperature: 0 if `do_sample` is false.
    pub fn temperature(&self) -> Option<f32> {
        if self.do_sample == Some(false) { Some(0.0) } else { self.temperature }
    }
}
