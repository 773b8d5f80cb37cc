//! Locates a checkpoint's chat template.

use std::path::{Path, PathBuf};

use serde::Deserialize;

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
    chat_template: Option<Written>,
}

#[derive(Deserialize)]
#[serde(untagged)]
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
    if let Some(default) = files::read_text(&path, TEMPLATE_BYTES_MAX)? {
        let tool_use = dir.join("additional_chat_templates").join("tool_use.jinja");
        let tool_use = files::read_text(&tool_use, TEMPLATE_BYTES_MAX)?;
        return Ok(Some(TemplateSource { path, default, tool_use }));
    }
    for name in ["tokenizer_config.json", "chat_template.json"] {
        let path = dir.join(name);
        let file: Option<HasTemplate> = files::read_json(&path, CONFIG_BYTES_MAX)?;
        if let Some(written) = file.and_then(|file| file.chat_template) {
            let found = select(path, written)?;
            for source in [Some(&found.default), found.tool_use.as_ref()].into_iter().flatten() {
                let size_bytes = source.len() as u64;
                if size_bytes > TEMPLATE_BYTES_MAX {
                    let (path, limit_bytes) = (found.path, TEMPLATE_BYTES_MAX);
                    return Err(TextLoadError::TooLarge { path, size_bytes, limit_bytes });
                }
            }
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Selects the templates from a list; a checkpoint that has only a template for tools uses it for
/// everything.
fn select(path: PathBuf, written: Written) -> Result<TemplateSource, TextLoadError> {
    let named = match written {
        Written::One(default) => return Ok(TemplateSource { path, default, tool_use: None }),
        Written::Named(named) => named,
    };
    let pick = |name: &str| {
        named.iter().find(|entry| entry.name == name).map(|entry| entry.template.clone())
    };
    match (pick("default"), pick("tool_use")) {
        (Some(default), tool_use) => Ok(TemplateSource { path, default, tool_use }),
        (None, Some(default)) => Ok(TemplateSource { path, default, tool_use: None }),
        (None, None) => {
            let found = named.into_iter().map(|entry| entry.name).collect();
            Err(TextLoadError::NoDefaultTemplate { path, found })
        }
    }
}
