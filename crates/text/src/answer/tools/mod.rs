//! The forms in which families of models write tool calls, one file each.

mod deepseek;
mod gemma;
mod generic;
mod glm;
mod harmony;
mod hermes;
mod kimi;
mod llama;
mod minimax;
mod mistral;
mod pythonic;
mod qwen_coder;

use std::fmt;

use super::ToolSpec;
use super::lark::{Lark, ToolGrammarError};
use super::pattern::Pattern;

/// How a model writes tool calls.
#[derive(Clone, Copy)]
pub struct ToolFormat {
    pub(crate) family: &'static ToolFamily,
}

/// One family of models.
#[derive(Debug)]
pub(crate) struct ToolFamily {
    name: &'static str,
    /// Names under which other servers know it.
    aliases: &'static [&'static str],
    /// What is found in the chat templates of the family: all of one list. A family without is
    /// only had by name.
    signs: &'static [&'static [&'static str]],
    pub(crate) patterns: &'static [Pattern],
    /// Tokens of their own that no step names.
    pub(crate) marks: &'static [&'static str],
    pub(crate) frame: Frame,
    /// The grammar of one call within the frame.
    pub(crate) item: fn(&mut Lark<'_>, &ToolSpec) -> Result<String, ToolGrammarError>,
}

/// What stands around calls when a grammar writes them.
#[derive(Debug)]
pub(crate) struct Frame {
    /// What may come before everything else.
    pub(crate) before: &'static str,
    /// What begins calls, and nothing else.
    pub(crate) trigger: &'static str,
    pub(crate) open: &'static str,
    /// Between two calls; a family without can write one only.
    pub(crate) separator: Option<&'static str>,
    pub(crate) close: &'static str,
    pub(crate) free: Free,
}

/// How text comes that is no call.
#[derive(Debug)]
pub(crate) enum Free {
    /// Before calls.
    Anywhere,
    /// Instead of calls: `text`, then what `body` says in Lark.
    Start { text: &'static str, body: &'static str },
}

/// The first whose signs a template has is its own. So those with signs that nobody else has come
/// first.
static FAMILIES: [&ToolFamily; 16] = [
    &harmony::FAMILY,
    &minimax::FAMILY,
    &gemma::FAMILY,
    &gemma::FUNCTION_GEMMA,
    &deepseek::V3,
    &deepseek::V31,
    &glm::FAMILY,
    &kimi::FAMILY,
    &qwen_coder::FAMILY,
    &mistral::WITH_ARGS,
    &mistral::FAMILY,
    &hermes::FAMILY,
    &pythonic::FAMILY,
    &pythonic::MARKED,
    &llama::FAMILY,
    &generic::FAMILY,
];

impl ToolFormat {
    /// The format of a checkpoint, by its template.
    pub(crate) fn detect(template: &str) -> Option<ToolFormat> {
        let shows = |signs: &&[&str]| signs.iter().all(|sign| template.contains(sign));
        let family = FAMILIES.iter().find(|family| family.signs.iter().any(shows))?;
        Some(ToolFormat { family })
    }

    /// The format with this name.
    pub fn named(name: &str) -> Option<ToolFormat> {
        let fits = |family: &&&ToolFamily| family.name == name || family.aliases.contains(&name);
        FAMILIES.iter().find(fits).map(|family| ToolFormat { family })
    }

    /// Names that [`ToolFormat::named`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FAMILIES
            .iter()
            .flat_map(|family| std::iter::once(family.name).chain(family.aliases.iter().copied()))
    }

    /// The name of the format.
    pub fn name(&self) -> &'static str {
        self.family.name
    }
}

impl fmt::Debug for ToolFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ToolFormat").field(&self.family.name).finish()
    }
}

impl PartialEq for ToolFormat {
    fn eq(&self, other: &ToolFormat) -> bool {
        self.family.name == other.family.name
    }
}
