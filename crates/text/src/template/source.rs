//! Locates a checkpoint's chat template.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::error::TextLoadError;
use crate::files::{self, CONFIG_BYTES_MAX};

/// Maximum size of a template in bytes. The largest one known has 40 KB.
const TEMPLATE_BYTES_MAX: u64 = 1 << 20;

/// The sources of a checkpoint's templates.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TemplateSource {
    /// File that holds the template.
    pub(super) path: PathBuf,
    pub(super) default: String,
    pub(super) tool_use: Option<String>,
}

/// The template field of a configuration file.
#[derive(Deserialize)]
struct HasTemplate {
    chat_template: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "chat_template is neither a text nor a list of named texts")]
enum Written {
    One(String),
    Named(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

/// Finds the template in the order of transformers. There, `chat_template.json` belongs to
/// processors, but some checkpoints have nothing else, so it comes last.
pub(super) fn find(dir: &Path) -> Result<Option<TemplateSource>, TextLoadError> {
    let path = dir.join("chat_template.jinja");
    if let Some(default) = read(&path)? {
        let tool_use = read(&dir.join("additional_chat_templates").join("tool_use.jinja"))?;
        return Ok(Some(TemplateSource { path, default, tool_use }));
    }
    for name in ["tokenizer_config.json", "chat_template.json"] {
        let path = dir.join(name);
        let file: Option<HasTemplate> = files::read_json(&path, CONFIG_BYTES_MAX)?;
        if let Some(written) = file.and_then(|file| file.chat_template) {
            let found = Written::deserialize(written).map_err(|err| err.to_string());
            let found = found.and_then(Written::select);
            let (default, tool_use) =
                found.map_err(|reason| TextLoadError::Template { path: path.clone(), reason })?;
            return Ok(Some(TemplateSource { path, default, tool_use }));
        }
    }
    Ok(None)
}

/// Reads a file that holds a template; `None` if there is no such file.
fn read(path: &Path) -> Result<Option<String>, TextLoadError> {
    files::read_text(path, TEMPLATE_BYTES_MAX).map_err(|err| {
        let reason = match &err {
            TextLoadError::TooLarge { size_bytes, .. } => too_large(*size_bytes),
            TextLoadError::NotText { source, .. } => format!("it is not UTF-8 text: {source}"),
            _ => return err,
        };
        TextLoadError::Template { path: path.to_owned(), reason }
    })
}

fn too_large(size_bytes: u64) -> String {
    format!("it has {size_bytes} bytes, more than the {TEMPLATE_BYTES_MAX} that are read")
}

impl Written {
    /// Returns the template and the one for tools. A checkpoint that has only a template for tools uses it
    /// for everything.
    ///
    /// # Errors
    /// Fails if there is no such template, or it is too large.
    fn select(self) -> Result<(String, Option<String>), String> {
        let mut named = match self {
            Written::One(default) => vec![Named { name: "default".to_owned(), template: default }],
            Written::Named(named) => named,
        };
        let mut pick = |name: &str| {
            let idx = named.iter().position(|entry| entry.name == name)?;
            Some(named.swap_remove(idx).template)
        };
        let (default, tool_use) = match (pick("default"), pick("tool_use")) {
            (Some(default), tool_use) => (default, tool_use),
            (None, Some(default)) => (default, None),
            (None, None) => {
                let found: Vec<String> = named.into_iter().map(|entry| entry.name).collect();
                return Err(format!("it lists {found:?}, but none is named default or tool_use"));
            }
        };
        let longest = default.len().max(tool_use.as_ref().map_or(0, String::len)) as u64;
        if TEMPLATE_BYTES_MAX < longest {
            return Err(too_large(longest));
        }
        Ok((default, tool_use))
    }
}
