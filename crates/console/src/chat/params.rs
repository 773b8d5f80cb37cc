//! Parameters of generation that a chat can change.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, ensure};
use serde_json::Value;

/// Whether a parameter is a whole number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Whole,
    Real,
}

/// Names as in OpenAI's API and its usual extensions. The server checks the values.
const NAMES: [(&str, Kind); 9] = [
    ("temperature", Kind::Real),
    ("top_p", Kind::Real),
    ("top_k", Kind::Whole),
    ("min_p", Kind::Real),
    ("repetition_penalty", Kind::Real),
    ("presence_penalty", Kind::Real),
    ("frequency_penalty", Kind::Real),
    ("max_tokens", Kind::Whole),
    ("seed", Kind::Whole),
];

/// Parameters that were set; all others have the server's defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatParams(BTreeMap<&'static str, Value>);

impl ChatParams {
    /// Sets a parameter.
    ///
    /// # Panics
    /// If there is no parameter of this name.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> ChatParams {
        assert!(NAMES.iter().any(|(known, _)| *known == name), "{name} is a parameter");
        self.0.insert(name, value.into());
        self
    }

    /// Applies a change such as `temperature 0.5` or `seed default`.
    ///
    /// # Errors
    /// If the parameter is unknown or the value is no number.
    pub(super) fn change(&mut self, change: &str) -> anyhow::Result<()> {
        let (name, value) = change.split_once([' ', '=']).unwrap_or((change, ""));
        let names = || NAMES.map(|(name, _)| name).join(", ");
        let found = NAMES.iter().find(|(known, _)| *known == name.trim());
        let (name, kind) =
            found.with_context(|| format!("there is no parameter {name}\nhint: {}", names()))?;
        let value = value.trim();
        ensure!(!value.is_empty(), "`/params {name}` needs a value\nhint: `default` resets it");
        if value == "default" {
            self.0.remove(name);
            return Ok(());
        }
        let number = match kind {
            Kind::Whole => value.parse::<i64>().ok().map(Value::from),
            Kind::Real => value.parse::<f64>().ok().filter(|it| it.is_finite()).map(Value::from),
        };
        let number = number.with_context(|| format!("{name} cannot be {value}: not a number"))?;
        self.0.insert(name, number);
        Ok(())
    }

    /// Writes the parameters to a request.
    pub(super) fn write(&self, body: &mut Value) {
        for (name, value) in &self.0 {
            body[*name] = value.clone();
        }
    }
}

impl fmt::Display for ChatParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (name, _)) in NAMES.iter().enumerate() {
            let value = self.0.get(name).map_or_else(|| "default".to_owned(), ToString::to_string);
            let end = if position + 1 < NAMES.len() { "\n" } else { "" };
            write!(f, "{name:<20} {value}{end}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_are_set_shown_sent_and_reset() {
        let mut params = ChatParams::default().with("max_tokens", 9);
        params.change("temperature 0.5").unwrap();
        params.change("seed=7").unwrap();
        let mut body = json!({});
        params.write(&mut body);
        assert_eq!(body, json!({"max_tokens": 9, "temperature": 0.5, "seed": 7}));
        assert!(params.to_string().contains("temperature          0.5\n"), "{params}");
        params.change("seed default").unwrap();
        assert!(params.to_string().ends_with("seed                 default"), "{params}");
        for wrong in ["warmth 1", "seed", "seed x", "top_k 1.5", "temperature NaN"] {
            assert!(params.change(wrong).is_err(), "{wrong}");
        }
    }
}
