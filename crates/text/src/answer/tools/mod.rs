//! The formats in which model families write tool calls, one file for each family.

mod apertus;
mod cohere;
mod deepseek;
mod dsml;
mod enclosed;
mod functionary;
mod gemma;
mod generic;
mod glm;
mod harmony;
mod hermes;
mod kimi;
mod kimi_k3;
mod llama;
mod longcat;
mod minicpm;
mod minimax;
mod minimax_m3;
mod mistral;
mod pythonic;
mod qwen_coder;
mod solar;

use std::fmt;

use serde_json::Value;

use super::ToolSpec;
use super::frame::Frame;
use super::lark::{Lark, ToolDemand, ToolGrammarError};
use super::pattern::Pattern;
use crate::TokenId;
use crate::tokenizer::Tokenizer;

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
    /// Tokens by which a vocabulary shows the family, for templates that do not write its markup;
    /// empty if only the template does.
    vocabulary: &'static [&'static str],
    pub(crate) patterns: &'static [Pattern],
    /// Special tokens of the format that are neither triggers nor literals of steps.
    pub(crate) marks: &'static [&'static str],
    pub(crate) frame: Frame,
    /// Builds the grammar of one call within the frame.
    pub(crate) item: fn(&mut Lark<'_>, &ToolSpec) -> Result<String, ToolGrammarError>,
}

/// All families, in order of detection: a checkpoint belongs to the first family whose signs its
/// template has, so families with signs that no other family has come first; else to the first one
/// whose tokens its vocabulary has; else to the last one.
static FAMILIES: [&ToolFamily; 38] = [
    &harmony::FAMILY,
    &minimax_m3::FAMILY,
    &minimax::FAMILY,
    &gemma::FAMILY,
    &gemma::FUNCTION_GEMMA,
    &qwen_coder::SEED_OSS,
    &cohere::FAMILY,
    &dsml::V41,
    &dsml::V4,
    &dsml::V32,
    &deepseek::V3,
    &deepseek::V31,
    &longcat::FAMILY,
    &longcat::WITH_JSON,
    &apertus::FAMILY,
    &kimi_k3::FAMILY,
    &pythonic::OLMO3,
    &solar::FAMILY,
    &solar::SECOND,
    &enclosed::NEMOTRON,
    &enclosed::INTERNLM,
    &minicpm::FAMILY,
    &glm::FAMILY,
    &kimi::FAMILY,
    &qwen_coder::FAMILY,
    &mistral::WITH_ARGS,
    &mistral::FAMILY,
    &hermes::FAMILY,
    &enclosed::HUNYUAN,
    &enclosed::MINIMAX,
    &pythonic::FAMILY,
    &pythonic::MINICPM3,
    &pythonic::MARKED,
    &functionary::V32,
    &functionary::V31,
    &llama::FAMILY,
    &cohere::COMMAND_R,
    &generic::FAMILY,
];

impl ToolFamily {
    /// Builds the grammar of calls, or of JSON in place of them. `special` has the special tokens
    /// of the format, with their text.
    pub(crate) fn grammar(
        &self,
        special: &[(TokenId, String)],
        tools: &[ToolSpec],
        demand: ToolDemand,
        instead: Option<&Value>,
    ) -> Result<String, ToolGrammarError> {
        if tools.is_empty() {
            return Err(ToolGrammarError::NoTools);
        }
        let mut lark = Lark::new(special);
        let mut items = Vec::with_capacity(tools.len());
        for tool in tools {
            let body = (self.item)(&mut lark, tool)?;
            items.push(lark.rule(&body));
        }
        let call = lark.rule(&items.join(" | "));
        let mut start = lark.start(&self.frame, &call, demand);
        if let Some(schema) = instead {
            let json = lark.rule(&format!("%json {schema}"));
            start = format!("{start} | {json}");
        }
        Ok(lark.finish(&start))
    }
}

impl ToolFormat {
    /// Detects the format of a checkpoint from its template and its vocabulary.
    pub(crate) fn detect(tokenizer: &Tokenizer, template: &str) -> Option<ToolFormat> {
        let shows = |signs: &&[&str]| signs.iter().all(|sign| template.contains(sign));
        let is_signed = |family: &&&ToolFamily| family.signs.iter().any(shows);
        let is_known = |family: &&&ToolFamily| {
            let mut tokens = family.vocabulary.iter();
            !family.vocabulary.is_empty() && tokens.all(|it| tokenizer.token_id(it).is_some())
        };
        let (last, own) = FAMILIES.split_last()?;
        let family = own.iter().find(is_signed).or_else(|| own.iter().find(is_known));
        let family = family.or_else(|| Some(last).filter(is_signed))?;
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
