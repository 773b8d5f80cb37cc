//! Checks on the names of tools, which appear in prompts, grammars and answers.

use std::collections::HashSet;

use serde_json::Value;

use crate::error::ApiError;

/// Maximum length of a tool's name, in characters.
const NAME_CHARS_MAX: usize = 128;

/// Checks the names of all tools. `param` returns the field name of the tool with an index.
///
/// # Errors
/// Returns an error if a name is empty, is too long, has a character that is not allowed, or occurs
/// twice.
pub fn check_tool_names<'a>(
    names: impl IntoIterator<Item = &'a str>,
    param: impl Fn(usize) -> String,
) -> Result<(), ApiError> {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
    let mut seen = HashSet::new();
    for (tool_idx, name) in names.into_iter().enumerate() {
        if name.is_empty() {
            return Err(ApiError::Empty { param: param(tool_idx) });
        }
        if NAME_CHARS_MAX < name.chars().count() || !name.chars().all(is_legal) {
            let expected =
                format!("at most {NAME_CHARS_MAX} letters, digits and characters of _-.:/");
            return Err(ApiError::out_of_range(param(tool_idx), &format!("{name:?}"), expected));
        }
        if !seen.insert(name) {
            let expected = "a name that no other tool has";
            return Err(ApiError::out_of_range(param(tool_idx), &format!("{name:?}"), expected));
        }
    }
    Ok(())
}

/// OpenAI's `tool_choice` of the type `allowed_tools`.
#[derive(Debug)]
pub struct AllowedTools<'a> {
    /// `auto` or `required`.
    pub mode: &'a str,
    names: Vec<&'a str>,
}

impl<'a> AllowedTools<'a> {
    /// Parses `choice` if it has this type. Chat completions nest its fields; responses do not.
    pub fn read(choice: &'a Value) -> Result<Option<AllowedTools<'a>>, ApiError> {
        if choice["type"] != "allowed_tools" {
            return Ok(None);
        }
        let fields = choice.get("allowed_tools").unwrap_or(choice);
        let wrong = |found: &Value, expected: &str| {
            ApiError::out_of_range("tool_choice", &found.to_string(), expected)
        };
        let mode = fields["mode"].as_str().filter(|it| ["auto", "required"].contains(it));
        let mode = mode.ok_or_else(|| wrong(&fields["mode"], "auto or required as its mode"))?;
        let expected = "a list of functions of tools as its tools";
        let tools = fields["tools"].as_array().filter(|tools| !tools.is_empty());
        let tools = tools.ok_or_else(|| wrong(&fields["tools"], expected))?;
        let name = |tool: &'a Value| {
            let name = tool.pointer("/function/name").or_else(|| tool.get("name"));
            name.and_then(Value::as_str).ok_or_else(|| wrong(tool, expected))
        };
        let names = tools.iter().map(name).collect::<Result<_, _>>()?;
        Ok(Some(AllowedTools { mode, names }))
    }

    /// Returns whether the tool of this name may be called.
    pub fn contains(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    /// Checks that every tool in the list is a tool of the request.
    pub fn check(&self, tools: &[&str]) -> Result<(), ApiError> {
        match self.names.iter().find(|name| !tools.contains(*name)) {
            None => Ok(()),
            Some(name) => {
                let found = format!("the function {name:?}");
                Err(ApiError::out_of_range("tool_choice", &found, "a function of tools"))
            }
        }
    }
}
