//! Checks whether a model's directory is complete: every file that serving needs exists, every
//! weight file has the length that its header states, and together they hold the tensors that the
//! model's description lists. Also checks whether this version can load the model.

pub(crate) mod weights;

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use jackalope_families::model_spec;
use jackalope_protocol::counted;
use jackalope_spec::{
    ModelSpec, SpecError, TensorProblem, TokenMapSpec, UnusedTensors, parse_config,
};
use serde::Serialize;
use serde_json::Value;

use super::files;
use crate::progress::human_bytes;

/// Name of the file that describes a model.
pub(crate) const CONFIG: &str = "config.json";

/// Maximum size of `config.json`; a larger file is rejected.
pub(crate) const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Properties of a model, as its directory states them.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Summary {
    /// `model_type` of the model's configuration, such as `qwen3`.
    pub architecture: Option<String>,
    /// How the model's weights are quantised.
    pub quantization: Option<Quantization>,
    /// Total size of the model's files in bytes.
    pub bytes: u64,
    /// Number of the model's files.
    pub num_files: usize,
}

/// How weights are quantised.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Quantization {
    /// Bits per weight, for most weights.
    pub bits: Option<u64>,
    /// Number of weights that share a scale.
    pub group_size: Option<u64>,
    /// `affine`, `mxfp4`, another program's method, or the type of unquantised weights such as
    /// `bfloat16`.
    pub mode: String,
}

/// Result of checking a directory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Check {
    /// Properties of the model.
    pub summary: Summary,
    /// Problems of the directory; empty if the model is complete.
    pub problems: Vec<Problem>,
    /// Why this version cannot load the model, even if it is complete; `None` if it can.
    pub unsupported: Option<SpecError>,
    /// Description of the model, if this version knows its architecture.
    pub spec: Option<ModelSpec>,
    /// Description of the tensors that the model does not use, each kind in a line that begins with a
    /// line break; empty if it uses all of them.
    pub unused: String,
}

/// A problem in a model's directory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Problem {
    /// The directory or a file in it cannot be read; also a dangling link.
    Unreadable {
        /// Error of the system, with the path.
        detail: String,
    },
    /// A file that every model has is missing.
    Missing {
        /// Name of the file.
        name: String,
    },
    /// There is no `model*.safetensors`.
    NoWeights,
    /// A file does not have the format that its name says.
    Malformed {
        /// Name of the file.
        name: String,
        /// What is wrong with the file.
        detail: String,
    },
    /// The configuration describes no model that this version knows: a field is missing or invalid.
    Config(SpecError),
    /// A weight file has another length than its header states.
    Length {
        /// Name of the file.
        name: String,
        /// Length according to the file's header.
        wanted: u64,
        /// Actual length, in bytes.
        found: u64,
    },
    /// The index names a tensor that its file does not contain.
    MissingTensor {
        /// The weight file.
        name: String,
        /// The tensor.
        tensor: String,
    },
    /// The weight files together do not hold what the model needs.
    Tensor(TensorProblem),
    /// A file's content is not what was fetched.
    Content {
        /// Name of the file.
        name: String,
    },
}

/// Names of files with a vocabulary; a model has at least one of them.
const TOKENIZERS: [&str; 4] =
    ["tokenizer.json", "tiktoken.model", "tekken.json", "tokenizer.model"];

impl Check {
    /// Checks names, sizes and headers. Reads no weights.
    pub fn of_dir(dir: &Path) -> Check {
        let mut check = Check::default();
        match files::list(dir) {
            Ok(files) => {
                check.summary.bytes = files.iter().map(|file| file.bytes).sum();
                check.summary.num_files = files.len();
            }
            Err(err) => check.problems.push(Problem::Unreadable { detail: err.to_string() }),
        }
        check.config(dir);
        if !TOKENIZERS.iter().any(|name| dir.join(name).is_file()) {
            check.problems.push(Problem::Missing { name: "tokenizer.json".to_owned() });
        }
        let has_map = check.spec.as_ref().is_some_and(|spec| spec.token_map().is_some());
        if has_map && !dir.join(TokenMapSpec::FILE).is_file() {
            check.problems.push(Problem::Missing { name: TokenMapSpec::FILE.to_owned() });
        }
        let weights = weights::check(dir, check.spec.as_ref());
        check.problems.extend(weights.problems);
        check.unused = UnusedTensors::describe_all(&weights.unused, |it| human_bytes(it, 2));
        check
    }

    /// Returns the reason why this version cannot load the model in `dir`; `None` if `config.json`
    /// cannot be read, which other checks report.
    pub fn unsupported(dir: &Path) -> Option<SpecError> {
        model_spec(&config(dir)?).err()
    }

    /// Counts a missing or invalid field of the configuration as unsupported, for files that are as they
    /// were published: copying them again would not help.
    pub fn of_published(mut self) -> Check {
        let is_config = |problem: &Problem| matches!(problem, Problem::Config(_));
        if let Some(idx) = self.problems.iter().position(is_config)
            && let Problem::Config(err) = self.problems.remove(idx)
        {
            self.unsupported = Some(err);
        }
        self
    }

    /// Returns true if there are no problems.
    pub fn is_whole(&self) -> bool {
        self.problems.is_empty()
    }

    fn config(&mut self, dir: &Path) {
        let malformed = |detail| Problem::Malformed { name: CONFIG.to_owned(), detail };
        match read_json(&dir.join(CONFIG), CONFIG_BYTES_MAX) {
            Ok(Some(config)) => {
                self.summary.architecture = config["model_type"].as_str().map(str::to_owned);
                self.summary.quantization = quantization(&config);
                match model_spec(&config) {
                    Ok(spec) => self.spec = Some(spec),
                    Err(err) if err.is_unsupported() => self.unsupported = Some(err),
                    Err(err) => self.problems.push(Problem::Config(err)),
                }
            }
            Ok(None) => self.problems.push(Problem::Missing { name: CONFIG.to_owned() }),
            Err(detail) => self.problems.push(malformed(detail)),
        }
    }
}

/// Reads the configuration of the model in `dir`.
fn config(dir: &Path) -> Option<Value> {
    read_json(&dir.join(CONFIG), CONFIG_BYTES_MAX).ok().flatten()
}

/// Reads the quantisation in MLX's form, or else in that of transformers.
fn quantization(config: &Value) -> Option<Quantization> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let ours = [&config["quantization"], &config["quantization_config"]];
    if let Some(found) = ours.into_iter().find(|it| it.is_object()) {
        let method = text(&found["mode"]).or_else(|| text(&found["quant_method"]));
        return Some(Quantization {
            bits: found["bits"].as_u64(),
            group_size: found["group_size"].as_u64(),
            mode: method.unwrap_or_else(|| "affine".to_owned()),
        });
    }
    let mode = text(&config["torch_dtype"]).or_else(|| text(&config["dtype"]))?;
    Some(Quantization { bits: None, group_size: None, mode })
}

/// Reads the JSON object in a file; `None` if the file does not exist.
pub(crate) fn read_json(path: &Path, bytes_max: u64) -> Result<Option<Value>, String> {
    let found = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(err.to_string()),
    };
    if bytes_max < found {
        return Err(format!("it has {found} bytes"));
    }
    let content = fs::read(path).map_err(|err| err.to_string())?;
    let value = parse_config(&content).map_err(|err| err.to_string())?;
    value.is_object().then_some(Some(value)).ok_or_else(|| "it is not a JSON object".to_owned())
}

impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.bits, self.mode.as_str()) {
            (Some(bits), "affine") => f.write_str(&counted(bits, "bit")),
            (Some(bits), mode) => write!(f, "{} {mode}", counted(bits, "bit")),
            (None, mode) => f.write_str(mode),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Unreadable { detail } => f.write_str(detail),
            Problem::Missing { name } => write!(f, "{name} is missing"),
            Problem::NoWeights => f.write_str("there is no model*.safetensors"),
            Problem::Malformed { name, detail } => write!(f, "{name}: {detail}"),
            Problem::Config(err) => write!(f, "{CONFIG}: {err}"),
            Problem::Length { name, wanted, found } if found < wanted => {
                write!(f, "{name} is cut off: {found} of {}", counted(wanted, "byte"))
            }
            Problem::Length { name, wanted, found } => {
                let found = counted(found, "byte");
                write!(f, "{name} goes on after its end: {found} instead of {wanted}")
            }
            Problem::MissingTensor { name, tensor } => {
                write!(f, "{name} does not hold {tensor}, which the index promises")
            }
            Problem::Tensor(problem) => write!(f, "{problem}"),
            Problem::Content { name } => write!(f, "{name} is not what was fetched"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jackalope_testing::{Scratch, weights};

    fn problems(dir: &Path) -> Vec<String> {
        Check::of_dir(dir).problems.iter().map(Problem::to_string).collect()
    }

    #[test]
    fn one_byte_is_singular_in_messages() {
        let length = |wanted, found| Problem::Length { name: "w".to_owned(), wanted, found };
        assert_eq!(length(1, 0).to_string(), "w is cut off: 0 of 1 byte");
        assert_eq!(length(0, 1).to_string(), "w goes on after its end: 1 byte instead of 0");
        let dir = Scratch::new();
        dir.write("m/config.json", b"{}");
        dir.write("m/model.safetensors", b"a");
        let found = problems(&dir.path().join("m")).join("\n");
        assert!(found.contains("it has 1 byte and no header"), "{found}");
    }

    #[test]
    fn a_whole_model_has_no_problems_and_says_what_it_is() {
        let dir = Scratch::new();
        let model = dir.model("m");
        dir.write("m/config.json", br#"{"model_type": "made_up", "quantization": {"bits": 4}}"#);
        let check = Check::of_dir(&model);
        assert_eq!(check.problems, []);
        assert_eq!(check.summary.architecture.as_deref(), Some("made_up"));
        assert_eq!(check.summary.quantization.unwrap().to_string(), "4 bits");
        assert_eq!(check.summary.num_files, 3);
    }

    #[test]
    fn weights_without_the_tensors_of_the_description_are_not_whole() {
        let dir = Scratch::new();
        let model = dir.model("m");
        let config = serde_json::json!({
            "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 16,
            "num_attention_heads": 2, "intermediate_size": 16, "rms_norm_eps": 1e-5,
        });
        dir.write("m/config.json", config.to_string().as_bytes());
        let check = Check::of_dir(&model);
        assert_eq!(check.unsupported, None);
        let found: Vec<String> = check.problems.iter().map(Problem::to_string).collect();
        assert_eq!(found[0], "tensor model.embed_tokens.weight [16, 8] is missing");
        assert_eq!(found[found.len() - 1], "1 tensor that `llama` does not use: a");
        dir.write("m/config.json", br#"{"model_type": "llama"}"#);
        assert!(problems(&model)[0].starts_with("config.json: missing field"));
        let published = Check::of_dir(&model).of_published();
        assert_eq!(published.problems, []);
        assert!(published.unsupported.unwrap().to_string().starts_with("missing field"));
        dir.write("m/config.json", br#"{"model_type": "hyena"}"#);
        let unsupported = Check::of_dir(&model).unsupported.unwrap().to_string();
        assert!(unsupported.contains("`hyena`; supported are afmoe"), "{unsupported}");
    }

    #[test]
    fn whatever_is_missing_or_cut_off_is_named() {
        let dir = Scratch::new();
        let model = dir.model("m");
        let whole = weights("a", 8);
        for len in [0, 7, 8, 20, whole.len() - 1] {
            dir.write("m/model.safetensors", &whole[..len]);
            let found = problems(&model);
            assert!(found.len() == 1 && found[0].contains("model.safetensors"), "{len}: {found:?}");
        }
        dir.write("m/model.safetensors", &[&whole[..], b"x"].concat());
        assert!(problems(&model)[0].contains("goes on after its end"));
        for name in ["config.json", "tokenizer.json", "model.safetensors"] {
            fs::remove_file(model.join(name)).unwrap();
        }
        let found = problems(&model);
        let wanted = [
            "config.json is missing",
            "tokenizer.json is missing",
            "there is no model*.safetensors",
        ];
        assert_eq!(found, wanted);
        assert!(problems(&dir.path().join("none"))[0].contains("none"));
    }

    #[test]
    fn what_the_index_promises_is_looked_for() {
        let dir = Scratch::new();
        let model = dir.model("m");
        fs::remove_file(model.join("model.safetensors")).unwrap();
        dir.write("m/model-1.safetensors", &weights("a", 8));
        let index = br#"{"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors",
            "c": "model-2.safetensors", "d": "../x"}}"#;
        dir.write("m/model.safetensors.index.json", index);
        let found = problems(&model);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("../x"), "{found:?}");
        assert_eq!(found[1], "model-1.safetensors does not hold b, which the index promises");
        assert_eq!(found[2], "model-2.safetensors is missing");
    }
}
