//! Checks whether this version can load a model, by its `config.json` alone. The ranks' loader
//! refuses the same checkpoints; this check refuses them before anything is fetched, placed or
//! started.

use std::fmt;

use jackalope_protocol::{ARCHITECTURES, QUANT_METHODS};
use serde_json::Value;

/// Reason why this version cannot load a checkpoint.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Unsupported {
    /// A `model_type` that this version does not implement.
    Architecture(String),
    /// The checkpoint needs its own code, which is never run here.
    ModelCode(String),
    /// The weights are quantised by another program.
    Quantization(String),
}

impl Unsupported {
    /// Checks a parsed `config.json`; `None` if nothing in it prevents loading. A configuration
    /// without a `model_type` is malformed rather than unsupported.
    pub fn of_config(config: &Value) -> Option<Unsupported> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        if let Some(file) = text(&config["model_file"]) {
            return Some(Unsupported::ModelCode(file));
        }
        let architecture = text(&config["model_type"])?;
        if !ARCHITECTURES.contains(&architecture.as_str()) {
            return Some(Unsupported::Architecture(architecture));
        }
        let is_mlx = config["quantization"].is_object();
        let method = text(&config["quantization_config"]["quant_method"]).filter(|_| !is_mlx)?;
        let is_known = QUANT_METHODS.contains(&method.as_str());
        (!is_known).then_some(Unsupported::Quantization(method))
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsupported::Architecture(found) => write!(
                f,
                "this version cannot load the architecture {found:?}; it loads {}",
                ARCHITECTURES.join(", ")
            ),
            Unsupported::ModelCode(file) => {
                write!(f, "the checkpoint needs its own code ({file:?}), which is never run")
            }
            Unsupported::Quantization(method) => write!(
                f,
                "this version cannot load weights quantised with {method:?}; it loads MLX's \
                 formats and {}",
                QUANT_METHODS.join(", ")
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn configurations_that_the_loader_refuses_are_named() {
        let text = |config: Value| Unsupported::of_config(&config).map(|it| it.to_string());
        assert_eq!(text(json!({"model_type": "qwen3"})), None);
        assert_eq!(text(json!({})), None);
        let mlx = json!({"model_type": "llama", "quantization": {"bits": 4},
            "quantization_config": {"bits": 4, "quant_method": "gptq"}});
        assert_eq!(text(mlx), None);
        let found = text(json!({"model_type": "deepseek_v3"})).unwrap();
        assert!(found.contains("\"deepseek_v3\"; it loads llama, "), "{found}");
        let awq = json!({"model_type": "llama", "quantization_config": {"quant_method": "awq"}});
        assert!(text(awq).unwrap().contains("\"awq\""));
        let code = json!({"model_type": "llama", "model_file": "mine.py"});
        assert!(text(code).unwrap().contains("mine.py"));
    }
}
