//! Tiny checkpoints from recipes: the counterpart of tests/golden/make.py.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use half::{bf16, f16};
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// Restricts the tests to the cases whose names begin with one of these prefixes, separated by
/// commas: for work on a family.
const PREFIXES: &str = "JACKALOPE_GOLDEN";

/// Another folder with cases, as `cargo xtask golden --vary SEED` writes it.
const FOLDER: &str = "JACKALOPE_GOLDEN_FOLDER";

/// The files of `tests/data/golden`, one for each family.
#[derive(Deserialize)]
pub(crate) struct Golden {
    pub(crate) prompt: Vec<u32>,
    pub(crate) cases: Vec<Case>,
    /// Cases that are left out of the tests of all cases.
    #[serde(default)]
    others: Vec<Case>,
}

impl Golden {
    pub(crate) fn read() -> Golden {
        let mut own =
            Golden::read_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden"));
        if let Some(folder) = std::env::var_os(FOLDER) {
            let others = std::mem::take(&mut own.cases);
            own = Golden { others, ..Golden::read_folder(Path::new(&folder)) };
        }
        own.restricted()
    }

    fn read_folder(folder: &Path) -> Golden {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut paths: Vec<PathBuf> = entries.collect();
        paths.sort();
        let read = |path| {
            let text = std::fs::read_to_string(path).unwrap();
            serde_json::from_str::<Golden>(&text).unwrap()
        };
        let families = paths.into_iter().map(read);
        let join = |mut all: Golden, family: Golden| {
            assert_eq!(all.prompt, family.prompt, "one prompt for all families");
            all.cases.extend(family.cases);
            all
        };
        families.reduce(join).expect("a family")
    }

    #[expect(clippy::disallowed_methods, reason = "a restriction for work on a family")]
    fn restricted(mut self) -> Golden {
        let Ok(prefixes) = std::env::var(PREFIXES) else { return self };
        eprintln!("{PREFIXES} restricts the cases to {prefixes}");
        let is_kept = |case: &Case| prefixes.split(',').any(|prefix| case.name.starts_with(prefix));
        let (kept, others) = self.cases.into_iter().partition(is_kept);
        self.cases = kept;
        self.others.extend::<Vec<Case>>(others);
        self
    }

    /// Whether cases are left out.
    pub(crate) fn is_restricted(&self) -> bool {
        !self.others.is_empty()
    }

    /// Returns the cases of these names; if the cases are restricted, all that are left.
    pub(crate) fn chosen(&self, names: &[&str]) -> Vec<&Case> {
        if self.is_restricted() {
            return self.cases.iter().collect();
        }
        names.iter().map(|name| self.case(name)).collect()
    }

    pub(crate) fn case(&self, name: &str) -> &Case {
        let mut all = self.cases.iter().chain(&self.others);
        all.find(|case| case.name == name).expect("a golden case")
    }
}

/// A checkpoint and what mlx-lm computes for it.
#[derive(Clone, Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) config: Value,
    /// `F32 128x128 0.0 0.4` by name: type, shape and two parameters; of `I64` the values.
    pub(crate) tensors: Map<String, Value>,
    sha256: String,
    /// Files beside the checkpoint, by name.
    #[serde(default)]
    files: Map<String, Value>,
    /// Logits after the last token of the prompt.
    pub(crate) logits: Vec<f32>,
    /// The best token after each token of the prompt.
    pub(crate) best: Vec<u32>,
    pub(crate) greedy: Vec<u32>,
    /// Distance of the best two log-probabilities at each greedy token.
    pub(crate) margins: Vec<f32>,
    /// The first dimensions of the final hidden states' mean over the prompt.
    pub(crate) mean: Vec<f32>,
    /// The first dimensions of the last position's final hidden state.
    pub(crate) last: Vec<f32>,
}

impl Case {
    /// Returns the `model_type`.
    pub(crate) fn family(&self) -> &str {
        self.config["model_type"].as_str().unwrap()
    }

    /// Writes the checkpoint. It must be the one that mlx-lm has seen.
    pub(crate) fn write(&self) -> Checkpoint {
        let checkpoint = self.write_edited();
        assert_eq!(checkpoint.sha256, self.sha256, "{}: another checkpoint", self.name);
        checkpoint
    }

    /// Returns the folder of this checkpoint, which stays for all tests, ranks and runs: making it takes longer
    /// than computing with it. Nobody may change it.
    pub(crate) fn stored(&self) -> PathBuf {
        let recipe = serde_json::json!([self.name, self.config, self.tensors, self.files]);
        let key = hash(recipe.to_string().as_bytes());
        let stored = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("checkpoint-{key:016x}"));
        if !stored.exists() {
            // Whole or not at all; another rank may be faster.
            let _ = std::fs::rename(self.write_edited().dir(), &stored);
            assert!(stored.exists(), "{}: nothing at {}", self.name, stored.display());
        }
        stored
    }

    /// The same architecture with more layers, which no reference has seen: each is made as one of
    /// the case's own layers, in turn, of other numbers.
    pub(crate) fn deepened(&self, num_layers: usize) -> Case {
        let mut case = self.clone();
        let wrappers = ["/thinker_config/text_config", "/text_config", ""];
        let path = wrappers.into_iter().find(|path| case.config.pointer(path).is_some()).unwrap();
        let text = case.config.pointer_mut(path).unwrap();
        let names = ["num_hidden_layers", "num_layers"];
        let field = names.into_iter().find(|name| text.get(name).is_some()).unwrap();
        let own = text[field].as_u64().unwrap() as usize;
        text[field] = num_layers.into();
        // Dense layers come first only; where one would be repeated, the last layer is.
        let dense = ["first_k_dense_replace", "num_dense_layers"];
        let dense = dense.iter().find_map(|name| text.get(name)?.as_u64()).unwrap_or(0) as usize;
        let source = |idx: usize| if idx % own < dense { own - 1 } else { idx % own };
        if let Some(Value::Array(dense)) = text.get_mut("mlp_only_layers") {
            let is_dense = |idx: &usize| dense.contains(&Value::from(idx % own));
            *dense = (0..num_layers).filter(is_dense).map(Value::from).collect();
        }
        // Numbers of layers, from 1 on.
        let linear = text.pointer_mut("/linear_attn_config/kda_layers");
        if let Some(linear) = linear.and_then(Value::as_array_mut) {
            let is_linear = |idx: &usize| {
                let layer_idx = if *idx < own { *idx } else { source(*idx) };
                linear.contains(&Value::from(layer_idx + 1))
            };
            let layers = (0..num_layers).filter(is_linear);
            *linear = layers.map(|layer_idx| Value::from(layer_idx + 1)).collect();
        }
        if let Some(Value::String(letters)) = text.get_mut("hybrid_override_pattern") {
            *letters = letters.chars().cycle().take(num_layers).collect();
        }
        // Lists with an entry for each layer.
        let repeat = |fields: &mut Value| {
            let lists = fields.as_object_mut().into_iter().flat_map(Map::values_mut);
            for list in lists.filter_map(Value::as_array_mut).filter(|list| list.len() == own) {
                *list = list.iter().cycle().take(num_layers).cloned().collect();
            }
        };
        repeat(text);
        text.get_mut("sparse_attention_config").into_iter().for_each(repeat);
        let copy = |entries: &mut Map<String, Value>| {
            for (name, value) in entries.clone() {
                let list = ["layers.", ".h."].into_iter().find(|list| name.contains(list));
                let Some(list) = list else { continue };
                let (head, rest) = name.split_once(list).unwrap();
                let Some((layer_idx, rest)) = rest.split_once('.') else { continue };
                let layer_idx = layer_idx.parse::<usize>().unwrap();
                if own <= layer_idx {
                    // A layer that drafts, and is not used.
                    entries.remove(&name);
                }
                // Copies of layers have no n-grams: each such layer has other constants.
                if rest.starts_with("ple.") {
                    continue;
                }
                for copied in (own..num_layers).filter(|copied| source(*copied) == layer_idx) {
                    entries.insert(format!("{head}{list}{copied}.{rest}"), value.clone());
                }
            }
        };
        copy(&mut case.tensors);
        if let Some(formats) = case.config.get_mut("quantization") {
            copy(formats.as_object_mut().unwrap());
        }
        case
    }

    /// Writes a checkpoint of whatever the fields hold now.
    pub(crate) fn write_edited(&self) -> Checkpoint {
        let tensors = self.tensors.keys().map(|name| (name.clone(), self.tensor(name)));
        self.write_tensors(tensors)
    }

    /// Makes a tensor.
    pub(crate) fn tensor(&self, name: &str) -> Tensor {
        let recipe: Vec<&str> = self.tensors[name].as_str().unwrap().split(' ').collect();
        let mut bytes = Vec::new();
        append(&mut bytes, &format!("{}/{name}", self.name), &recipe);
        Tensor { dtype: recipe[0].to_owned(), shape: dimensions(recipe[1]), bytes }
    }

    /// Writes a checkpoint of these tensors.
    pub(crate) fn write_tensors(
        &self,
        tensors: impl Iterator<Item = (String, Tensor)>,
    ) -> Checkpoint {
        let dir = TempDir::new(&self.name);
        std::fs::write(dir.path().join("config.json"), self.config.to_string()).unwrap();
        for (name, content) in &self.files {
            std::fs::write(dir.path().join(name), content.to_string()).unwrap();
        }
        let (mut header, mut data) = (Map::new(), Vec::new());
        for (name, tensor) in tensors {
            let start = data.len();
            data.extend(tensor.bytes);
            let offsets = [start, data.len()];
            let entry = serde_json::json!({
                "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets
            });
            header.insert(name, entry);
        }
        let mut file = Value::Object(header).to_string().into_bytes();
        file.resize(file.len().next_multiple_of(8), b' ');
        file.splice(0..0, (file.len() as u64).to_le_bytes());
        let sha256 = Sha256::digest(&data).iter().map(|byte| format!("{byte:02x}")).collect();
        file.extend(data);
        std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
        Checkpoint { dir, sha256 }
    }
}

/// A tensor of a checkpoint.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

/// A checkpoint on disk, which is removed when this is dropped.
pub(crate) struct Checkpoint {
    dir: TempDir,
    sha256: String,
}

impl Checkpoint {
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn weights(&self) -> PathBuf {
        self.dir().join("model.safetensors")
    }
}

/// Returns the dimensions of `2x3`; a single number has none.
fn dimensions(shape: &str) -> Vec<u64> {
    let dims = shape.split('x').filter(|_| shape != "scalar");
    dims.map(|dim| dim.parse().unwrap()).collect()
}

fn append(data: &mut Vec<u8>, name: &str, recipe: &[&str]) {
    let count = dimensions(recipe[1]).into_iter().product();
    let bits = random_bits(name, count);
    let float = |idx: usize| recipe[idx].parse::<f32>().unwrap();
    let integer = |idx: usize| recipe[idx].parse::<u64>().unwrap();
    match recipe[0] {
        "I64" => {
            let values = recipe[2..].iter().map(|value| value.parse::<i64>().unwrap());
            data.extend(values.flat_map(i64::to_le_bytes));
        }
        "U32" => {
            let mask = u32::try_from(integer(2)).unwrap();
            data.extend(bits.flat_map(|bits| (((bits >> 32) as u32) & mask).to_le_bytes()));
        }
        "I32" => {
            let (number, step) = (integer(2), integer(3));
            let values = bits.zip(0..).map(|(bits, idx)| (bits >> 32) % number * step + idx % step);
            data.extend(values.flat_map(|value| u32::try_from(value).unwrap().to_le_bytes()));
        }
        "F8_E4M3" => {
            let mask = u8::try_from(integer(2)).unwrap();
            data.extend(bits.map(|bits| ((bits >> 32) as u8) & mask));
        }
        "U8" | "I8" | "F8_E8M0" => {
            let (least, number) = (integer(2), integer(3));
            data.extend(bits.map(|bits| (least + (bits >> 32) % number) as u8));
        }
        dtype => {
            let (offset, amplitude) = (float(2), float(3));
            let values = bits.map(|bits| {
                let unit = (bits >> 40) as f32 * 2.0_f32.powi(-24);
                offset + (unit - 0.5) * amplitude
            });
            match dtype {
                "F32" => data.extend(values.flat_map(f32::to_le_bytes)),
                "F16" => data.extend(values.flat_map(|value| f16::from_f32(value).to_le_bytes())),
                "BF16" => data.extend(values.flat_map(|v| bf16::from_f32(v).to_le_bytes())),
                other => panic!("no recipe for {other}"),
            }
        }
    }
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

/// splitmix64 from the hash of the name.
fn random_bits(name: &str, count: u64) -> impl Iterator<Item = u64> {
    let seed = hash(name.as_bytes());
    (1..=count).map(move |step| {
        let z = seed.wrapping_add(step.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

/// A directory of one test.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> TempDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{name}-{}-{count}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Leftovers are in the build folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
