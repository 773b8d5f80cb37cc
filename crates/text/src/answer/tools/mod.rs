//! The formats in which model families write tool calls, one file for each family.

mod deepseek;
mod functionary;
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

/// The tool calls of one model family.
#[derive(Debug)]
pub(crate) struct ToolFamily {
    name: &'static str,
    /// Names of this format in other servers.
    aliases: &'static [&'static str],
    /// Lists of strings in the family's chat templates; a template belongs to the family if it
    /// contains every string of one list. A family without signs can only be chosen by name.
    signs: &'static [&'static [&'static str]],
    pub(crate) patterns: &'static [Pattern],
    /// Special tokens that no step names.
    pub(crate) marks: &'static [&'static str],
    pub(crate) frame: Frame,
    /// Builds the grammar of one call within the frame.
    pub(crate) item: fn(&mut Lark<'_>, &ToolSpec) -> Result<String, ToolGrammarError>,
}

/// The text around calls in a grammar.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Text that may come before everything else.
    pub(crate) before: &'static str,
    /// Text that begins calls and never begins anything else.
    pub(crate) trigger: &'static str,
    pub(crate) open: &'static str,
    /// Text between two calls; a family without a separator can write only one call.
    pub(crate) separator: Option<&'static str>,
    pub(crate) close: &'static str,
    pub(crate) free: Free,
}

/// Where an answer may have text that is not a call.
#[derive(Debug)]
pub(crate) enum Free {
    /// Text may come before calls.
    Anywhere,
    /// Text may only come instead of calls: `text`, followed by a match of the Lark expression
    /// `body`.
    Start { text: &'static str, body: &'static str },
}

/// All families, in order of detection: a template belongs to the first family whose signs it has,
/// so families with signs that no other family has come first.
static FAMILIES: [&ToolFamily; 17] = [
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
    &functionary::FAMILY,
    &llama::FAMILY,
    &generic::FAMILY,
];

impl ToolFormat {
    /// Detects the format of a checkpoint from its template.
    pub(crate) fn detect(template: &str) -> Option<ToolFormat> {
        let shows = |signs: &&[&str]| signs.iter().all(|sign| template.contains(sign));
        let family = FAMILIES.iter().find(|family| family.signs.iter().any(shows))?;
        Some(ToolFormat { family })
    }

    /// Returns the format with this name or alias.
    pub fn named(name: &str) -> Option<ToolFormat> {
        let fits = |family: &&&ToolFamily| family.name == name || family.aliases.contains(&name);
        FAMILIES.iter().find(fits).map(|family| ToolFormat { family })
    }

    /// Returns all names that [`ToolFormat::named`] accepts.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FAMILIES
            .iter()
            .flat_map(|family| std::iter::once(family.name).chain(family.aliases.iter().copied()))
    }

    /// Returns the name of the format.
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
