//! Reads the headers of safetensors files: the position of each tensor.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::files::{Files, Pieces};
use crate::error::LoadError;

/// Maximum length of a header, as in the reference implementation.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// An element type that models are stored in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ElementType {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// Brain floats.
    Bf16,
    /// Packed codes.
    U32,
    /// Scales of the floating-point quantisations.
    U8,
    /// A type that no supported architecture uses.
    Other(Dtype),
}

impl ElementType {
    /// Whether weights of this type are floats, in which a model can be computed.
    pub fn is_float(self) -> bool {
        matches!(self, ElementType::F32 | ElementType::F16 | ElementType::Bf16)
    }

    /// Returns the name in a safetensors header.
    pub fn name(self) -> String {
        match self {
            ElementType::F32 => Dtype::F32,
            ElementType::F16 => Dtype::F16,
            ElementType::Bf16 => Dtype::BF16,
            ElementType::U32 => Dtype::U32,
            ElementType::U8 => Dtype::U8,
            ElementType::Other(dtype) => dtype,
        }
        .to_string()
    }
}

impl From<Dtype> for ElementType {
    fn from(dtype: Dtype) -> ElementType {
        match dtype {
            Dtype::F32 => ElementType::F32,
            Dtype::F16 => ElementType::F16,
            Dtype::BF16 => ElementType::Bf16,
            Dtype::U32 => ElementType::U32,
            Dtype::U8 => ElementType::U8,
            other => ElementType::Other(other),
        }
    }
}

/// A weight file.
#[derive(Debug)]
pub(crate) struct TensorFile {
    files: Arc<dyn Files>,
    name: String,
    path: PathBuf,
}

impl TensorFile {
    /// Fills `target` with the bytes from `offset` on.
    pub(crate) fn read_at(&self, offset: u64, target: &mut [u8]) -> Result<(), LoadError> {
        self.read(Pieces::run(offset, target.len()), target)
    }

    /// Fills `target` with pieces of the file.
    pub(crate) fn read(&self, pieces: Pieces, target: &mut [u8]) -> Result<(), LoadError> {
        self.files
            .read(&self.name, pieces, target)
            .map_err(|source| LoadError::read(&self.path, source))
    }
}

/// The position and shape of a tensor.
#[derive(Clone, Debug)]
pub struct TensorEntry {
    pub(crate) file: Arc<TensorFile>,
    /// Offset of its bytes in the file.
    pub(crate) offset: u64,
    /// Element type.
    pub element_type: ElementType,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Length in the file, in bytes.
    pub num_bytes: u64,
}

impl TensorEntry {
    /// Returns the path of the file that holds the tensor.
    pub fn path(&self) -> &Path {
        &self.file.path
    }
}

/// All tensors of a checkpoint by name.
#[derive(Debug)]
pub struct TensorIndex {
    entries: BTreeMap<String, TensorEntry>,
}

impl TensorIndex {
    /// Returns the tensors whose names begin with `prefix`.
    pub(crate) fn below<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a TensorEntry)> {
        let from = self.entries.range(prefix.to_owned()..);
        from.take_while(move |(name, _)| name.starts_with(prefix))
            .map(|(name, entry)| (name.as_str(), entry))
    }

    /// Reads the headers of all `model*.safetensors`. An index file is not read: the headers are
    /// complete, and old index files are sometimes wrong.
    pub(super) fn open(files: &Arc<dyn Files>) -> Result<TensorIndex, LoadError> {
        let mut entries: BTreeMap<String, TensorEntry> = BTreeMap::new();
        for (name, num_bytes) in weight_files(&**files)? {
            let path = files.place().join(&name);
            let file = Arc::new(TensorFile { files: Arc::clone(files), name, path });
            for (tensor, entry) in read_header(&file, num_bytes)? {
                if let Some(first) = entries.get(&tensor) {
                    let first = first.path().to_path_buf();
                    let second = file.path.clone();
                    return Err(LoadError::DuplicateTensor { tensor, first, second });
                }
                entries.insert(tensor, entry);
            }
        }
        Ok(TensorIndex { entries })
    }

    /// Returns the tensor with this name.
    pub fn find(&self, name: &str) -> Option<&TensorEntry> {
        self.entries.get(name)
    }

    /// Returns all names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Returns the size of all tensors together, in bytes.
    pub fn num_bytes(&self) -> u64 {
        self.entries.values().map(|entry| entry.num_bytes).sum()
    }
}

/// Returns the weight files in order, with their sizes in bytes.
fn weight_files(files: &dyn Files) -> Result<Vec<(String, u64)>, LoadError> {
    let place = files.place();
    let listed =
        files.list().map_err(|source| LoadError::Read { path: place.to_path_buf(), source })?;
    let is_weights = |name: &str| name.starts_with("model") && name.ends_with(".safetensors");
    let mut weights: Vec<(String, u64)> =
        listed.into_iter().filter(|(name, _)| is_weights(name)).collect();
    if weights.is_empty() {
        return Err(LoadError::NoWeights { dir: place.to_path_buf() });
    }
    weights.sort();
    Ok(weights)
}

fn read_header(
    file: &Arc<TensorFile>,
    found_bytes: u64,
) -> Result<BTreeMap<String, TensorEntry>, LoadError> {
    let path = &file.path;
    let malformed = |reason: String| LoadError::Header { path: path.clone(), reason };
    if found_bytes < 8 {
        // A broken link is listed with a size of 0; this read reports its error.
        file.read_at(0, &mut [])?;
        return Err(malformed(format!("file has {found_bytes} bytes")));
    }
    let mut prefix = [0; 8];
    file.read_at(0, &mut prefix)?;
    let header_bytes = u64::from_le_bytes(prefix);
    if MAX_HEADER_BYTES < header_bytes {
        return Err(malformed(format!(
            "header of {header_bytes} bytes exceeds the limit of {MAX_HEADER_BYTES}"
        )));
    }
    let data_offset = 8 + header_bytes;
    if found_bytes < data_offset {
        let path = path.clone();
        return Err(LoadError::FileSize { path, expected_bytes: data_offset, found_bytes });
    }
    let mut header = vec![0; usize::try_from(header_bytes).expect("checked against the limit")];
    file.read_at(8, &mut header)?;
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|err| malformed(err.to_string()))?;
    let expected_bytes = data_offset.saturating_add(metadata.data_len() as u64);
    if expected_bytes != found_bytes {
        return Err(LoadError::FileSize { path: path.clone(), expected_bytes, found_bytes });
    }
    let entries = metadata.tensors().into_iter().map(|(name, info)| {
        let (start, end) = info.data_offsets;
        let entry = TensorEntry {
            file: Arc::clone(file),
            offset: data_offset + start as u64,
            element_type: info.dtype.into(),
            shape: info.shape.clone(),
            num_bytes: (end - start) as u64,
        };
        (name, entry)
    });
    Ok(entries.collect())
}
