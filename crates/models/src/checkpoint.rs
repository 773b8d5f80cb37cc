//! A checkpoint as it is stored: `config.json`, the headers of its weight files, its quantisation.
//! Pure: nothing here needs libmlx, and no tensor is read.

mod config;
mod files;
mod quantization;
mod tensors;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::LoadError;

pub(crate) use config::float;
pub use files::{Files, OtherContent, Pieces, local};
pub use quantization::{QuantFormat, QuantMode};
pub use tensors::{ElementType, TensorEntry, TensorIndex};

use quantization::QuantizationMap;

/// Maximum size in `config.json`: far above any vocabulary, and products of two sizes still fit.
const MAX_DIMENSION: u32 = 1 << 24;

/// The fields that every `config.json` has, whatever the architecture.
#[derive(Debug, Deserialize)]
struct Header {
    model_type: String,
    #[serde(default)]
    model_file: Option<String>,
}

/// An opened checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    model_type: String,
    config: Value,
    quantization: QuantizationMap,
    /// Names, positions and shapes of all tensors.
    pub tensors: TensorIndex,
}

impl Checkpoint {
    /// Reads `config.json` and the headers of all `model*.safetensors`.
    ///
    /// # Errors
    /// Fails if a file is missing, truncated or malformed, or if the checkpoint needs its own code.
    pub fn open(dir: &Path) -> Result<Checkpoint, LoadError> {
        Checkpoint::read(&files::local(dir))
    }

    /// Like [`Checkpoint::open`], from any source of files.
    ///
    /// # Errors
    /// As for [`Checkpoint::open`].
    pub fn read(files: &Arc<dyn Files>) -> Result<Checkpoint, LoadError> {
        let dir = files.place();
        let path = dir.join(config::NAME);
        let config = config::read(&path, &**files)?;
        let header: Header = config::parse(&path, &config)?;
        if let Some(found) = header.model_file {
            let supported: &[&str] = &["architectures built into jackalope"];
            let what = "model code in the checkpoint";
            return Err(LoadError::Unsupported { path, what, found, supported });
        }
        let quantization = QuantizationMap::new(&path, &config)?;
        let tensors = TensorIndex::open(files)?;
        let model_type = header.model_type;
        Ok(Checkpoint { dir: dir.to_path_buf(), model_type, config, quantization, tensors })
    }

    /// Returns the directory of the checkpoint.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns `model_type` of `config.json`.
    pub fn model_type(&self) -> &str {
        &self.model_type
    }

    /// Returns the path of `config.json`.
    pub fn config_path(&self) -> PathBuf {
        self.dir.join(config::NAME)
    }

    /// Returns the fields of `config.json` that `C` declares.
    ///
    /// # Errors
    /// Fails if a field is missing or has another type.
    pub fn config<C: DeserializeOwned>(&self) -> Result<C, LoadError> {
        config::parse(&self.config_path(), &self.config)
    }

    /// Returns the quantisation of the layer at `module` with `input` features; `None` if it is not
    /// quantised.
    ///
    /// # Errors
    /// Fails if the layer's tensors fit no format, or another one than `config.json` states for it.
    pub fn quantization(
        &self,
        module: &str,
        input: usize,
    ) -> Result<Option<QuantFormat>, LoadError> {
        self.quantization.format(&self.tensors, module, input)
    }

    /// Returns a size from `config.json` after checking its bounds.
    pub(crate) fn dimension(&self, field: &'static str, size: u32) -> Result<usize, LoadError> {
        if (1..=MAX_DIMENSION).contains(&size) {
            return Ok(size as usize);
        }
        let expected = format!("a number from 1 to {MAX_DIMENSION}");
        Err(self.bad_value(field, size, &expected))
    }

    /// Creates an error about a value in `config.json`.
    pub(crate) fn bad_value(
        &self,
        field: &'static str,
        found: impl std::fmt::Debug,
        expected: &str,
    ) -> LoadError {
        LoadError::ConfigValue {
            path: self.config_path(),
            field,
            found: format!("{found:?}"),
            expected: expected.to_owned(),
        }
    }

    /// Creates an error about an unsupported setting of `config.json`.
    pub(crate) fn unsupported(
        &self,
        what: &'static str,
        found: &str,
        supported: &'static [&'static str],
    ) -> LoadError {
        LoadError::Unsupported {
            path: self.config_path(),
            what,
            found: found.to_owned(),
            supported,
        }
    }
}
