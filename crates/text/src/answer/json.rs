//! Tool calls that are written as JSON.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::ToolCall;

/// A call in JSON, with the member names that models use.
#[derive(Deserialize)]
struct Written<'a> {
    #[serde(alias = "tool_name")]
    name: Option<String>,
    #[serde(borrow, default, alias = "parameters")]
    arguments: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
    /// The call as an object of its own, as in the OpenAI API.
    #[serde(borrow)]
    function: Option<&'a RawValue>,
}

/// Returns the calls in `json`, an object or a list of objects; `None` if one of the objects is not
/// a call, or the list is empty. With [`Needs::Arguments`], an object without arguments is not a
/// call: where the markup has no marker before the JSON, it may be any object.
pub(crate) fn calls(json: &str, arguments: Needs) -> Option<Vec<ToolCall>> {
    if json.starts_with('[') {
        let listed: Vec<&RawValue> = serde_json::from_str(json).ok()?;
        let calls: Option<Vec<ToolCall>> =
            listed.into_iter().map(|json| call(json.get(), arguments)).collect();
        return calls.filter(|calls| !calls.is_empty());
    }
    Some(vec![call(json, arguments)?])
}

/// The members that a call must have besides its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    Arguments,
}

fn call(json: &str, needs: Needs) -> Option<ToolCall> {
    let mut written: Written = serde_json::from_str(json).ok()?;
    if let (None, Some(function)) = (&written.name, written.function) {
        let id = written.id;
        written = serde_json::from_str(function.get()).ok()?;
        written.id = written.id.or(id);
    }
    if needs == Needs::Arguments && written.arguments.is_none() {
        return None;
    }
    let arguments = match written.arguments.map(RawValue::get) {
        None | Some("null") => "{}".to_owned(),
        Some(arguments) => object(arguments)?,
    };
    let id = written.id.and_then(|id| serde_json::from_str(id.get()).ok());
    Some(ToolCall { id, name: written.name?, arguments })
}

/// Returns a JSON object exactly as it was written; `None` if `json` is none. Some models write the
/// object as a JSON string, as the API does; the string is then decoded.
pub(crate) fn object(json: &str) -> Option<String> {
    let written: &RawValue = serde_json::from_str(json).ok()?;
    if written.get().starts_with('{') {
        return Some(written.get().to_owned());
    }
    let quoted: String = serde_json::from_str(json).ok()?;
    let object: &RawValue = serde_json::from_str(&quoted).ok()?;
    object.get().starts_with('{').then(|| object.get().to_owned())
}
