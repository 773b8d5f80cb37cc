//! The arguments of a tool call as an object, for the protocols that write them so.

use serde_json::{Map, Value};

/// What holds arguments that are no JSON object, so that nothing the model wrote is lost.
const NO_OBJECT: &str = "arguments";

/// The arguments that the model wrote, as an object.
pub(crate) fn arguments_object(arguments: &str) -> Map<String, Value> {
    if arguments.trim().is_empty() {
        return Map::new();
    }
    serde_json::from_str(arguments)
        .unwrap_or_else(|_| Map::from_iter([(NO_OBJECT.to_owned(), arguments.into())]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_become_an_object_and_nothing_is_lost() {
        for (written, object) in [
            (r#"{"b": 1, "a": [true]}"#, r#"{"b":1,"a":[true]}"#),
            ("", "{}"),
            (" ", "{}"),
            ("[1]", r#"{"arguments":"[1]"}"#),
            ("{\"a\":", r#"{"arguments":"{\"a\":"}"#),
        ] {
            assert_eq!(Value::from(arguments_object(written)).to_string(), object);
        }
    }
}
