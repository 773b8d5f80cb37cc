//! Errors of reading `config.json`.

use thiserror::Error;

/// Reason why a `config.json` describes no model that this version knows.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum SpecError {
    /// A field is missing or has another type.
    #[error("{reason}")]
    Malformed {
        /// Message of the parser.
        reason: String,
    },
    /// A field has an invalid value.
    #[error("`{field}` is {found}, expected {expected}")]
    Value {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        found: String,
        /// Description of valid values.
        expected: String,
    },
    /// The architecture is unknown, or its layers are not computed yet.
    #[error("unsupported architecture: `{found}`; supported are {}", supported.join(", "))]
    Architecture {
        /// `model_type` of the checkpoint.
        found: String,
        /// Supported architectures.
        supported: Vec<&'static str>,
    },
    /// A variant of a known architecture is not supported.
    #[error("unsupported {what}: `{found}`; supported are {}", supported.join(", "))]
    Setting {
        /// Kind of setting: `rope type`, `activation`, `quantisation`.
        what: &'static str,
        /// Value of the setting.
        found: String,
        /// Supported values.
        supported: &'static [&'static str],
    },
}

/// Hint for a model that this version cannot load.
const UNSUPPORTED_HINT: &str = "use a conversion of this model by mlx-community, convert it with \
     mlx_lm.convert, choose a supported model, or upgrade jackalope";

/// Hint for a model whose `config.json` is not valid.
const CONFIG_HINT: &str = "config.json lacks the field or has a wrong value; fetch config.json again from \
     where the model came from";

impl SpecError {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        if self.is_unsupported() { UNSUPPORTED_HINT } else { CONFIG_HINT }
    }

    /// Whether the configuration is valid, but asks for something that this version lacks.
    pub fn is_unsupported(&self) -> bool {
        match self {
            SpecError::Architecture { .. } | SpecError::Setting { .. } => true,
            SpecError::Malformed { .. } | SpecError::Value { .. } => false,
        }
    }
}
