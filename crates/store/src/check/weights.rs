//! Checks the weight files: whether those in the index exist, whether their lengths match their
//! headers, and whether they hold the tensors that the model needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use jackalope_protocol::{FilePath, counted};
use jackalope_spec::{
    ElementType, ModelSpec, TensorHeader, TensorHeaders, UnusedPart, UnusedTensors,
};
use serde_json::{Map, Value};

use super::{Problem, read_json};

/// Name of the file that says which tensor is in which weight file.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Number of bytes that precede a header and state its size.
pub(crate) const PREFIX_BYTES: u64 = 8;

/// Maximum header size that the format allows.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Size of the largest elements in bytes: sizes of tensors are counted in 64 bits.
const ELEMENT_BYTES_MAX: u64 = 8;

/// Maximum size of an index; a larger file is rejected.
pub(crate) const INDEX_BYTES_MAX: u64 = 256 << 20;

/// Names of the tensors that each weight file holds, by the file's name.
pub(crate) type TensorsByFile = BTreeMap<String, BTreeSet<String>>;

/// Result of checking the weight files.
#[derive(Debug, Default)]
pub(super) struct Weights {
    pub(super) problems: Vec<Problem>,
    /// Tensors that the model does not use.
    pub(super) unused: Vec<UnusedTensors>,
}

/// Checks the weights in `dir`.
pub(super) fn check(dir: &Path, spec: Option<&ModelSpec>) -> Weights {
    let mut problems = Vec::new();
    let mut headers = TensorHeaders::new();
    let mut promised = promised(dir, &mut problems);
    for name in present(dir) {
        promised.entry(name).or_default();
    }
    if promised.is_empty() && problems.is_empty() {
        return Weights { problems: vec![Problem::NoWeights], ..Weights::default() };
    }
    for (name, tensors) in promised {
        if !dir.join(&name).is_file() {
            if !spec.is_some_and(|spec| is_drafter(spec, &tensors)) {
                problems.push(Problem::Missing { name });
            }
            continue;
        }
        match header(&dir.join(&name), &name) {
            Ok(header) => {
                let missing = tensors.into_iter().filter(|tensor| !header.contains_key(tensor));
                problems.extend(
                    missing.map(|tensor| Problem::MissingTensor { name: name.clone(), tensor }),
                );
                headers.extend(header);
            }
            Err(problem) => problems.push(problem),
        }
    }
    if let (Some(spec), true) = (spec, problems.is_empty()) {
        problems.extend(spec.check(&headers).problems.into_iter().map(Problem::Tensor));
    }
    let unused = spec.map(|spec| spec.unused_tensors(&headers)).unwrap_or_default();
    Weights { problems, unused }
}

/// Whether a weight file with these tensors only predicts several tokens at once: the model does
/// without it.
pub(crate) fn is_drafter(spec: &ModelSpec, tensors: &BTreeSet<String>) -> bool {
    let is_unused = |name: &String| spec.unused_part(name) == Some(UnusedPart::Prediction);
    !tensors.is_empty() && tensors.iter().all(is_unused)
}

/// Returns the files that the index names, with their tensors.
fn promised(dir: &Path, problems: &mut Vec<Problem>) -> TensorsByFile {
    match read_json(&dir.join(INDEX), INDEX_BYTES_MAX) {
        Ok(None) => TensorsByFile::new(),
        Ok(Some(index)) => tensors_by_file(&index, problems),
        Err(detail) => {
            problems.push(Problem::Malformed { name: INDEX.to_owned(), detail });
            TensorsByFile::new()
        }
    }
}

/// Returns the files that an index names, with their tensors.
pub(crate) fn tensors_by_file(index: &Value, problems: &mut Vec<Problem>) -> TensorsByFile {
    let mut promised = TensorsByFile::new();
    let malformed = |detail| Problem::Malformed { name: INDEX.to_owned(), detail };
    let Some(map) = index["weight_map"].as_object() else {
        problems.push(malformed("it has no weight_map".to_owned()));
        return promised;
    };
    for (tensor, file) in map {
        match file.as_str().and_then(|name| name.parse::<FilePath>().ok()) {
            Some(name) => {
                promised.entry(name.into()).or_default().insert(tensor.clone());
            }
            None => problems.push(malformed(format!("{tensor} is said to lie in {file}"))),
        }
    }
    promised
}

/// Returns the weight files that ranks read.
fn present(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with("model") && name.ends_with(".safetensors")).collect()
}

/// Returns the tensors of a weight file, if the file's length matches its header.
fn header(path: &Path, name: &str) -> Result<TensorHeaders, Problem> {
    let malformed = |detail: String| Problem::Malformed { name: name.to_owned(), detail };
    let unreadable = |err: std::io::Error| malformed(err.to_string());
    let mut file = File::open(path).map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?.len();
    let read = |num_bytes: u64| {
        let mut text = Vec::new();
        (&mut file).take(num_bytes).read_to_end(&mut text).map_err(unreadable)?;
        Ok(text)
    };
    header_of(name, found, read)
}

/// Returns the tensors of a weight file of `found` bytes, if this length matches the header. `read`
/// returns the given number of bytes that follow those it has returned before.
///
/// # Errors
/// If `read` fails, or the header is malformed, longer than [`HEADER_BYTES_MAX`], or states another
/// length.
pub(crate) fn header_of<E: From<Problem>>(
    name: &str,
    found: u64,
    mut read: impl FnMut(u64) -> Result<Vec<u8>, E>,
) -> Result<TensorHeaders, E> {
    let malformed = |detail: String| Problem::Malformed { name: name.to_owned(), detail };
    if found < PREFIX_BYTES {
        return Err(malformed(format!("it has {} and no header", counted(found, "byte"))).into());
    }
    let prefix = read(PREFIX_BYTES)?.try_into();
    let prefix = prefix.map_err(|_| malformed("its header ends early".to_owned()))?;
    let header_bytes = u64::from_le_bytes(prefix);
    if HEADER_BYTES_MAX < header_bytes {
        let detail = format!(
            "it does not begin with a header of safetensors, which has at most {HEADER_BYTES_MAX} \
             bytes"
        );
        return Err(malformed(detail).into());
    }
    let length = |wanted| Problem::Length { name: name.to_owned(), wanted, found };
    let data_offset = PREFIX_BYTES + header_bytes;
    if found < data_offset {
        return Err(length(data_offset).into());
    }
    let header = serde_json::from_slice(&read(header_bytes)?);
    let mut header: Map<String, Value> =
        header.map_err(|err| malformed(format!("its header: {err}")))?;
    header.remove("__metadata__");
    let mut end = 0;
    for (tensor, entry) in &header {
        let last = entry["data_offsets"][1].as_u64();
        let last = last.ok_or_else(|| malformed(format!("its header: {tensor} has no place")))?;
        end = last.max(end);
        let mut dims = entry["shape"].as_array().into_iter().flatten().filter_map(Value::as_u64);
        if dims.try_fold(ELEMENT_BYTES_MAX, u64::checked_mul).is_none() {
            return Err(malformed(format!("its header: {tensor} has impossible dimensions")).into());
        }
    }
    let wanted = data_offset.saturating_add(end);
    if found != wanted {
        return Err(length(wanted).into());
    }
    Ok(header.iter().map(|(name, entry)| (name.clone(), tensor(entry))).collect())
}

/// Reads a tensor's entry in a header.
fn tensor(entry: &Value) -> TensorHeader {
    let element_type = ElementType::from_name(entry["dtype"].as_str().unwrap_or_default());
    let dims = entry["shape"].as_array().into_iter().flatten();
    let dims = dims.map(|dim| dim.as_u64().and_then(|dim| usize::try_from(dim).ok()).unwrap_or(0));
    TensorHeader { element_type, shape: dims.collect() }
}
