//! Checkpoints: the one that ships, and copies of it that were changed.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Map, Value, json};

/// The model that ships, in bfloat16 and 4 bits.
pub(crate) fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/jackalope-mini")
}

/// The weights of the model that ships.
pub(crate) fn shipped_weights() -> Weights {
    Weights::parse(&std::fs::read(shipped().join("model.safetensors")).unwrap())
}

/// The same model computing in float32, where no two tokens are so close that the order of a sum
/// decides between them: texts that should be the same are the same to the last token.
pub(crate) fn exact() -> &'static Path {
    static EXACT: OnceLock<PathBuf> = OnceLock::new();
    EXACT.get_or_init(|| {
        // Kept between runs; renaming makes it complete at any time.
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("jackalope-mini-f32");
        let copy = Copy::new();
        copy.edit_weights(Weights::widen);
        std::fs::create_dir_all(&dir).unwrap();
        for entry in std::fs::read_dir(copy.path()).unwrap() {
            let entry = entry.unwrap();
            std::fs::rename(entry.path(), dir.join(entry.file_name())).unwrap();
        }
        dir
    })
}

/// A copy of the shipped model, which is removed when this is dropped.
pub(crate) struct Copy(PathBuf);

impl Copy {
    pub(crate) fn new() -> Copy {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("cli-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let copy = Copy(dir);
        for entry in std::fs::read_dir(shipped()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        copy
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn edit_config(&self, edit: impl FnOnce(&mut Value)) {
        let path = self.0.join("config.json");
        let mut config = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        edit(&mut config);
        std::fs::write(path, config.to_string()).unwrap();
    }

    pub(crate) fn edit_weights(&self, edit: impl FnOnce(&mut Weights)) {
        let path = self.weights_path();
        let mut weights = Weights::parse(&std::fs::read(&path).unwrap());
        edit(&mut weights);
        std::fs::write(path, weights.bytes()).unwrap();
        // The index would name tensors that are gone, or lack new ones.
        std::fs::remove_file(self.0.join("model.safetensors.index.json")).ok();
    }

    /// Moves the tensors that `is_moved` selects to another weight file, and writes an index.
    pub(crate) fn split_weights(&self, other: &str, is_moved: impl Fn(&str) -> bool) {
        let weights = Weights::parse(&std::fs::read(self.weights_path()).unwrap());
        let (moved, kept): (Vec<Tensor>, Vec<Tensor>) =
            weights.tensors.into_iter().partition(|tensor| is_moved(&tensor.name));
        let mut map = Map::new();
        for (name, tensors) in [("model.safetensors", kept), (other, moved)] {
            map.extend(tensors.iter().map(|tensor| (tensor.name.clone(), name.into())));
            std::fs::write(self.0.join(name), Weights { tensors }.bytes()).unwrap();
        }
        self.write_index(&Value::Object(map));
    }

    /// Writes an index, which says of each tensor in which file it is.
    pub(crate) fn write_index(&self, weight_map: &Value) {
        let index = json!({"weight_map": weight_map}).to_string();
        std::fs::write(self.0.join("model.safetensors.index.json"), index).unwrap();
    }

    pub(crate) fn weights_path(&self) -> PathBuf {
        self.0.join("model.safetensors")
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Returns the offset of a tensor in a safetensors file.
pub(crate) fn place_of(tensor: &str, file: &[u8]) -> usize {
    let header_len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + header_len]).unwrap();
    8 + header_len + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize
}

/// One tensor of a safetensors file.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) data: Vec<u8>,
}

/// A safetensors file.
pub(crate) struct Weights {
    pub(crate) tensors: Vec<Tensor>,
}

impl Weights {
    fn parse(file: &[u8]) -> Weights {
        let header_len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let header: Map<String, Value> = serde_json::from_slice(&file[8..8 + header_len]).unwrap();
        let data = &file[8 + header_len..];
        let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
        let tensors = tensors.map(|(name, entry)| {
            let offset = |idx: usize| entry["data_offsets"][idx].as_u64().unwrap() as usize;
            let shape = entry["shape"].as_array().unwrap();
            Tensor {
                name,
                dtype: entry["dtype"].as_str().unwrap().to_owned(),
                shape: shape.iter().map(|dim| dim.as_u64().unwrap()).collect(),
                data: data[offset(0)..offset(1)].to_vec(),
            }
        });
        Weights { tensors: tensors.collect() }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut header = Map::new();
        let mut data: Vec<u8> = Vec::new();
        for tensor in &self.tensors {
            let start = data.len();
            data.extend(&tensor.data);
            let offsets = [start, data.len()];
            let entry = json!({
                "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets
            });
            header.insert(tensor.name.clone(), entry);
        }
        let mut file = Value::Object(header).to_string().into_bytes();
        file.resize(file.len().next_multiple_of(8), b' ');
        file.splice(0..0, (file.len() as u64).to_le_bytes());
        file.extend(data);
        file
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("a tensor of the model")
    }

    /// From bfloat16 to float32, which loses nothing.
    fn widen(&mut self) {
        for tensor in self.tensors.iter_mut().filter(|tensor| tensor.dtype == "BF16") {
            tensor.dtype = "F32".to_owned();
            let halves = tensor.data.chunks_exact(2);
            tensor.data = halves.flat_map(|half| [0, 0, half[0], half[1]]).collect();
        }
    }
}
