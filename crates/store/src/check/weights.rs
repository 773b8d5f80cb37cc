//! Checks the weight files: whether those in the index exist, whether their lengths match their
//! headers, and whether they hold the tensors that the model needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use jackalope_protocol::{FilePath, counted};
use jackalope_spec::{ElementType, ModelSpec, TensorHeader, TensorHeaders, UnusedTensors};
use serde_json::{Map, Value};

use super::{Problem, read_json};

const INDEX: &str = "model.safetensors.index.json";

/// Maximum header size that the format allows.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Maximum size of an index; a larger file is rejected.
const INDEX_BYTES_MAX: u64 = 256 << 20;

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
            problems.push(Problem::Missing { name });
            continue;
        }
        match header(&dir.join(&name), &name) {
            Ok(header) => {
                let missing = tensors.into_iter().filter(|tensor| !header.contains_key(tensor));
                problems.extend(
                    missing.map(|tensor| Problem::MissingTensor { name: name.clone(), tensor }),
                );
                headers.extend(header.iter().map(|(name, entry)| (name.clone(), tensor(entry))));
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

/// Reads a tensor's entry in a header.
fn tensor(entry: &Value) -> TensorHeader {
    let element_type = ElementType::from_name(entry["dtype"].as_str().unwrap_or_default());
    let dims = entry["shape"].as_array().into_iter().flatten();
    let dims = dims.map(|dim| dim.as_u64().and_then(|dim| usize::try_from(dim).ok()).unwrap_or(0));
    TensorHeader { element_type, shape: dims.collect() }
}

/// Returns the files that the index names, with their tensors.
fn promised(dir: &Path, problems: &mut Vec<Problem>) -> BTreeMap<String, BTreeSet<String>> {
    let mut promised: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let malformed = |detail| Problem::Malformed { name: INDEX.to_owned(), detail };
    let index = match read_json(&dir.join(INDEX), INDEX_BYTES_MAX) {
        Ok(None) => return promised,
        Ok(Some(index)) => index,
        Err(detail) => {
            problems.push(malformed(detail));
            return promised;
        }
    };
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

/// Returns a weight file's header, if the file's length matches it.
fn header(path: &Path, name: &str) -> Result<Map<String, Value>, Problem> {
    let name = || name.to_owned();
    let malformed = |detail: String| Problem::Malformed { name: name(), detail };
    let unreadable = |err: std::io::Error| malformed(err.to_string());
    let mut file = File::open(path).map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?.len();
    if found < 8 {
        return Err(malformed(format!("it has {} and no header", counted(found, "byte"))));
    }
    let mut prefix = [0; 8];
    file.read_exact(&mut prefix).map_err(unreadable)?;
    let header_bytes = u64::from_le_bytes(prefix);
    if HEADER_BYTES_MAX < header_bytes {
        return Err(malformed("it does not begin with a header of safetensors".to_owned()));
    }
    if found < 8 + header_bytes {
        return Err(Problem::Length { name: name(), wanted: 8 + header_bytes, found });
    }
    let mut text = Vec::new();
    file.take(header_bytes).read_to_end(&mut text).map_err(unreadable)?;
    let mut header: Map<String, Value> =
        serde_json::from_slice(&text).map_err(|err| malformed(format!("its header: {err}")))?;
    header.remove("__metadata__");
    let mut end = 0;
    for (tensor, entry) in &header {
        let last = entry["data_offsets"][1].as_u64();
        let last = last.ok_or_else(|| malformed(format!("its header: {tensor} has no place")))?;
        end = last.max(end);
    }
    let wanted = (8 + header_bytes).saturating_add(end);
    if found == wanted { Ok(header) } else { Err(Problem::Length { name: name(), wanted, found }) }
}
