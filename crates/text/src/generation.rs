//! What a checkpoint's makers recommend for drawing tokens.

use std::path::Path;

use serde::Deserialize;

use crate::error::LoadError;
use crate::files;

/// `generation_config.json`, as far as it is about drawing tokens. What is absent, the makers leave
/// open.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
pub struct GenerationDefaults {
    /// False asks for the most likely token always.
    pub do_sample: Option<bool>,
    /// Divides the logits.
    pub temperature: Option<f32>,
    /// Nucleus mass.
    pub top_p: Option<f32>,
    /// Number of best tokens kept; 0 keeps all.
    pub top_k: Option<u32>,
    /// Least probability relative to the best token's.
    pub min_p: Option<f32>,
    /// Weakens tokens that occurred before; 1 does not.
    pub repetition_penalty: Option<f32>,
}

impl GenerationDefaults {
    /// Reads `generation_config.json` of the checkpoint in `dir`; without it nothing is recommended.
    pub(crate) fn load(dir: &Path) -> Result<GenerationDefaults, LoadError> {
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
                return Err(LoadError::OutOfRange { path, name, found, low, high });
            }
        }
        Ok(found)
    }

    /// The temperature that is recommended, 0 where the most likely token is always to be taken.
    pub fn temperature(&self) -> Option<f32> {
        if self.do_sample == Some(false) { Some(0.0) } else { self.temperature }
    }
}
