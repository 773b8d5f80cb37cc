//! Reads the headers of safetensors files: the position of each tensor.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jackalope_protocol::counted;
use jackalope_spec::quantized_originals::{self, Derived, OriginalTensor};
use jackalope_spec::{ElementType, ModelSpec, PackedPart, TensorHeader, TensorHeaders};
use safetensors::tensor::Metadata;

use super::derived;
use super::files::{Files, Pieces};
use super::stored::StoredBytes;
use crate::error::LoadError;

/// Maximum length of a header, as in the reference implementation.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Where tensors are read: a weight file, or one tensor that is computed from others as if it lay in a file of
/// its own.
#[derive(Debug)]
pub(crate) struct TensorFile {
    path: PathBuf,
    content: Content,
}

/// What the bytes of a [`TensorFile`] are.
#[derive(Debug)]
enum Content {
    /// Those of a file.
    Stored { files: Arc<dyn Files>, name: String },
    /// Those of a tensor with this number of columns.
    Derived { from: Derived<TensorEntry>, columns: usize },
}

impl TensorFile {
    /// Returns a weight file.
    fn stored(files: &Arc<dyn Files>, name: String) -> TensorFile {
        let path = files.place().join(&name);
        TensorFile { path, content: Content::Stored { files: Arc::clone(files), name } }
    }

    /// Fills `target` with the bytes from `offset` on.
    pub(crate) fn read_at(&self, offset: u64, target: &mut [u8]) -> Result<(), LoadError> {
        self.read(Pieces::run(offset, target.len()), target)
    }

    /// Fills `target` with pieces of the file.
    pub(crate) fn read(&self, pieces: Pieces, target: &mut [u8]) -> Result<(), LoadError> {
        match &self.content {
            Content::Stored { files, name } => files
                .read(name, pieces, target)
                .map_err(|source| LoadError::read(&self.path, source)),
            Content::Derived { from, columns } => derived::read(from, *columns, pieces, target),
        }
    }
}

/// The position and shape of a tensor.
#[derive(Clone, Debug)]
pub struct TensorEntry {
    pub(crate) file: Arc<TensorFile>,
    /// Offset of its bytes in the file.
    pub(crate) offset: u64,
    /// Element type and dimensions.
    pub header: TensorHeader,
    /// Length in the file, in bytes.
    pub num_bytes: u64,
}

impl TensorEntry {
    /// Returns a part of a tensor that has parts of the same size only.
    fn part(&self, part: PackedPart) -> TensorEntry {
        let num_bytes = self.num_bytes / part.num_parts as u64;
        let element_type = self.header.element_type.clone();
        TensorEntry {
            file: Arc::clone(&self.file),
            offset: self.offset + part.idx as u64 * num_bytes,
            header: TensorHeader { element_type, shape: part.shape },
            num_bytes,
        }
    }

    /// Returns the path of the file that holds the tensor.
    pub fn path(&self) -> &Path {
        &self.file.path
    }
}

impl StoredBytes for TensorEntry {
    fn element_type(&self) -> &ElementType {
        &self.header.element_type
    }

    fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    fn read(&self, pieces: Pieces, target: &mut [u8]) -> Result<(), LoadError> {
        let offset = self.offset + pieces.offset;
        self.file.read(Pieces { offset, ..pieces }, target)
    }
}

impl OriginalTensor for TensorEntry {
    fn header(&self) -> &TensorHeader {
        &self.header
    }

    fn with_header(&self, header: TensorHeader) -> TensorEntry {
        TensorEntry { header, ..self.clone() }
    }

    fn derived(from: Derived<TensorEntry>, header: TensorHeader) -> TensorEntry {
        let path = match &from {
            Derived::Multiplied { source, .. } | Derived::RowsRepeated { source, .. } => {
                source.path()
            }
            Derived::Transposed { source, .. } => source.path(),
            Derived::Dequantized { codes: words, .. }
            | Derived::Repacked { words }
            | Derived::Biases { zeros: words, .. } => words.path(),
        };
        let (path, columns) = (path.to_owned(), header.shape.last().copied().unwrap_or(1));
        let file = Arc::new(TensorFile { path, content: Content::Derived { from, columns } });
        TensorEntry { file, offset: 0, num_bytes: header.num_bytes(), header }
    }
}

/// All tensors of a checkpoint by name.
#[derive(Debug)]
pub struct TensorIndex {
    entries: BTreeMap<String, TensorEntry>,
}

impl TensorIndex {
    /// Reads the headers of all `model*.safetensors`. An index file is not read: the headers are
    /// complete, and old index files are sometimes wrong.
    pub(super) fn open(files: &Arc<dyn Files>) -> Result<TensorIndex, LoadError> {
        let mut entries: BTreeMap<String, TensorEntry> = BTreeMap::new();
        for (name, num_bytes) in weight_files(&**files)? {
            let file = Arc::new(TensorFile::stored(files, name));
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

    /// Returns the tensors of the language model, by the names in its description.
    pub(super) fn of_model(self, spec: &ModelSpec) -> TensorIndex {
        let entries = self.entries.into_iter();
        let named = entries
            .filter_map(|(name, entry)| Some((spec.names.of_model(&name)?.into_owned(), entry)));
        let mut entries: BTreeMap<String, TensorEntry> = named.collect();
        if let Some(format) = spec.quantization.original {
            entries = quantized_originals::as_converted(format, entries);
        }
        let Some(packed) = &spec.packed else { return TensorIndex { entries } };
        let entries = packed.unpacked(entries, |it| &it.header.shape, TensorEntry::part);
        TensorIndex { entries }
    }

    /// Returns the tensor with this name.
    pub fn find(&self, name: &str) -> Option<&TensorEntry> {
        self.entries.get(name)
    }

    /// Returns the element types and dimensions of all tensors.
    pub fn headers(&self) -> TensorHeaders {
        let entries = self.entries.iter();
        entries.map(|(name, entry)| (name.clone(), entry.header.clone())).collect()
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
        return Err(malformed(format!("file has {}", counted(found_bytes, "byte"))));
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
            header: TensorHeader {
                element_type: ElementType::from_name(&info.dtype.to_string()),
                shape: info.shape.clone(),
            },
            num_bytes: (end - start) as u64,
        };
        (name, entry)
    });
    Ok(entries.collect())
}
