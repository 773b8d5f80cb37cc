//! A checkpoint as it is stored: what `config.json` describes, and the headers of its weight files.
//! Pure: nothing here needs libmlx, and no tensor is read.

mod columns;
mod config;
mod derived;
mod files;
mod readers;
mod stored;
mod tensors;
mod token_map;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jackalope_families::model_spec;
use jackalope_spec::{ModelLayout, ModelSpec};

use crate::error::LoadError;

pub use files::{Files, OtherContent, Pieces, local};
pub(crate) use readers::NUM_READERS;
pub use readers::in_parallel;
pub use tensors::{TensorEntry, TensorIndex};

/// An opened checkpoint, in which no tensor is missing.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    /// The model, as `config.json` describes it.
    pub spec: ModelSpec,
    /// How the model lies in the weight files.
    pub layout: ModelLayout,
    /// Names, positions and shapes of all tensors.
    pub tensors: TensorIndex,
    /// The numbers of tokens that tables of n-grams are indexed by, if they are not the ids.
    pub token_map: Option<Arc<[u32]>>,
}

impl Checkpoint {
    /// Reads `config.json`, the headers of all `model*.safetensors`, and the numbers of tokens if the model
    /// has any.
    ///
    /// # Errors
    /// Fails if a file is missing, truncated or malformed, or if the checkpoint is incomplete or not
    /// supported.
    pub fn open(dir: &Path) -> Result<Checkpoint, LoadError> {
        Checkpoint::read(&files::local(dir))
    }

    /// Like [`Checkpoint::open`], from any source of files.
    ///
    /// # Errors
    /// As for [`Checkpoint::open`].
    pub fn read(files: &Arc<dyn Files>) -> Result<Checkpoint, LoadError> {
        let dir = files.place().to_path_buf();
        let path = dir.join(config::NAME);
        let config = config::read(&path, &**files)?;
        let refused = |source| LoadError::Spec { path: path.clone(), source };
        let spec = model_spec(&config).map_err(refused)?;
        let stored = TensorIndex::open(files)?;
        let layout = spec.layout(&stored.headers());
        let layout = layout.map_err(|report| LoadError::Tensors { dir: dir.clone(), report })?;
        let tensors = stored.of_model(&spec);
        let token_map = spec.token_map().map(|map| token_map::read(&dir, map, &**files));
        Ok(Checkpoint { token_map: token_map.transpose()?, dir, spec, layout, tensors })
    }

    /// Returns the directory of the checkpoint.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}
