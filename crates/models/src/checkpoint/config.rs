//! Reads `config.json`.

use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::files::{Files, Pieces};
use crate::error::LoadError;

/// Name of the file.
pub(super) const NAME: &str = "config.json";

/// Maximum length of `config.json`; the largest published ones are below 100 KB.
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Reads and parses the file; errors name it `path`.
pub(super) fn read(path: &Path, files: &dyn Files) -> Result<Value, LoadError> {
    let failed = |source| LoadError::read(path, source);
    let is_config = |(name, _): &(String, u64)| name == NAME;
    let found = files.list().map_err(failed)?.into_iter().find(is_config);
    let (_, num_bytes) =
        found.ok_or_else(|| failed(io::Error::new(io::ErrorKind::NotFound, "No such file")))?;
    if MAX_CONFIG_BYTES < num_bytes {
        let reason = format!("file has {num_bytes} bytes, expected at most {MAX_CONFIG_BYTES}");
        return Err(LoadError::Config { path: path.to_path_buf(), reason });
    }
    let mut text = vec![0; usize::try_from(num_bytes).expect("checked against the limit")];
    files.read(NAME, Pieces::run(0, text.len()), &mut text).map_err(failed)?;
    serde_json::from_slice(&text).map_err(|err| LoadError::Config {
        path: path.to_path_buf(),
        reason: format!("not valid JSON: {err}"),
    })
}

/// Returns the fields that `C` declares.
pub(super) fn parse<C: DeserializeOwned>(path: &Path, config: &Value) -> Result<C, LoadError> {
    C::deserialize(config)
        .map_err(|err| LoadError::Config { path: path.to_path_buf(), reason: err.to_string() })
}

/// A number, or transformers' notation for one that JSON cannot hold: `{"__float__": "Infinity"}`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Float {
    Number(f64),
    Tagged { __float__: Tag },
}

#[derive(Deserialize)]
enum Tag {
    Infinity,
    #[serde(rename = "-Infinity")]
    NegativeInfinity,
    NaN,
}

/// Deserializes an `Option<f64>`, for `#[serde(deserialize_with = "float")]`.
pub(crate) fn float<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    Ok(Option::<Float>::deserialize(deserializer)?.map(|float| match float {
        Float::Number(number) => number,
        Float::Tagged { __float__: Tag::Infinity } => f64::INFINITY,
        Float::Tagged { __float__: Tag::NegativeInfinity } => f64::NEG_INFINITY,
        Float::Tagged { __float__: Tag::NaN } => f64::NAN,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Sample {
        #[serde(default, deserialize_with = "float")]
        theta: Option<f64>,
    }

    #[test]
    fn numbers_that_json_cannot_hold_are_understood() {
        let theta = |text: &str| serde_json::from_str::<Sample>(text).unwrap().theta;
        assert_eq!(theta("{}"), None);
        assert_eq!(theta(r#"{"theta": null}"#), None);
        assert_eq!(theta(r#"{"theta": 10000}"#), Some(1e4));
        assert_eq!(theta(r#"{"theta": 5e5}"#), Some(5e5));
        assert_eq!(theta(r#"{"theta": {"__float__": "Infinity"}}"#), Some(f64::INFINITY));
        assert_eq!(theta(r#"{"theta": {"__float__": "-Infinity"}}"#), Some(f64::NEG_INFINITY));
        assert!(theta(r#"{"theta": {"__float__": "NaN"}}"#).unwrap().is_nan());
        assert!(serde_json::from_str::<Sample>(r#"{"theta": {"__float__": "big"}}"#).is_err());
    }
}
