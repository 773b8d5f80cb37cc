//! The markers that model families put around their reasoning.

use crate::TokenId;
use crate::tokenizer::Tokenizer;

use super::form::Form;
use super::pattern::{Pattern, Position, Step};

/// How a model marks its reasoning.
#[derive(Clone, Copy)]
pub struct ReasoningFormat {
    pub(crate) family: &'static ReasoningFamily,
}

/// The reasoning markers of one family.
#[derive(Debug)]
pub(crate) struct ReasoningFamily {
    name: &'static str,
    /// Names of this format in other servers.
    aliases: &'static [&'static str],
    open: &'static str,
    close: &'static str,
    /// Text between reasoning that was cut short and the answer.
    resume: &'static str,
    /// Where the reasoning may open.
    pub(crate) place: Position,
    /// Markup of the answer that is neither reasoning nor a call.
    pub(crate) markup: &'static [Pattern],
    /// Tokens that every model of the family has in its vocabulary.
    vocabulary: &'static [&'static str],
}

/// All families, in order of detection: a checkpoint belongs to the first one whose vocabulary it
/// has. Families with tokens that no other family has come first.
static FAMILIES: [ReasoningFamily; 7] = [
    ReasoningFamily {
        name: "harmony",
        aliases: &["gpt_oss", "openai_gptoss"],
        open: "<|channel|>analysis<|message|>",
        close: "<|end|>",
        resume: "<|start|>assistant<|channel|>final<|message|>",
        place: Position::Anywhere,
        markup: HARMONY_MARKUP,
        vocabulary: &["<|channel|>", "<|message|>", "<|start|>", "<|end|>"],
    },
    ReasoningFamily {
        place: Position::Anywhere,
        resume: "",
        ..plain("gemma4", &[], "<|channel>thought", "<channel|>", &["<|channel>", "<channel|>"])
    },
    plain("longcat", &[], "<longcat_think>", "</longcat_think>", LONGCAT),
    plain("think_marks", &[], "<|think:start|>", "<|think:end|>", THINK_MARKS),
    plain("seed_oss", &[], "<seed:think>", "</seed:think>", &["<seed:think>"]),
    plain("mistral", &["magistral"], "[THINK]", "[/THINK]", &["[THINK]", "[/THINK]"]),
    plain(
        "think",
        &["deepseek_r1", "qwen3", "glm4", "glm45", "minimax_m2", "step3p5", "poolside_v1"],
        "<think>",
        "</think>",
        &["<think>", "</think>"],
    ),
];

const LONGCAT: &[&str] = &["<longcat_think>", "</longcat_think>"];
const THINK_MARKS: &[&str] = &["<|think:start|>", "<|think:end|>"];

/// Tokens by which [`is_in_vocabulary`] also recognises a family that none of [`FAMILIES`]
/// describes: its reasoning is on by default, but is not one contiguous piece of the text.
const OTHER_VOCABULARY: [&str; 4] = ["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"];

/// Creates a family with two markers around the reasoning, which comes before the answer.
const fn plain(
    name: &'static str,
    aliases: &'static [&'static str],
    open: &'static str,
    close: &'static str,
    vocabulary: &'static [&'static str],
) -> ReasoningFamily {
    let (resume, place, markup): (_, _, &[Pattern]) = ("\n\n", Position::Start, &[]);
    ReasoningFamily { name, aliases, open, close, resume, place, markup, vocabulary }
}

/// Headers and ends of harmony's messages. The text after the header of a message to the user is
/// content.
const HARMONY_MARKUP: &[Pattern] = &[
    bare(
        "<|start|>assistant<|channel|>",
        Position::Anywhere,
        &[Step::Literal("<|start|>assistant")],
    ),
    alone("<|channel|>final<|message|>", &[Step::Literal("<|channel|>final<|message|>")]),
    // The header may name the format of the answer, as in `final <|constrain|>json`.
    alone(
        "<|channel|>final <|constrain|>",
        &[
            Step::Literal("<|channel|>final <|constrain|>"),
            Step::Word,
            Step::Literal("<|message|>"),
        ],
    ),
    alone("<|channel|>commentary<|message|>", &[Step::Literal("<|channel|>commentary<|message|>")]),
    alone("<|end|>", &[Step::Literal("<|end|>")]),
    alone("<|return|>", &[Step::Literal("<|return|>")]),
    alone("<|call|>", &[Step::Literal("<|call|>")]),
];

const fn alone(trigger: &'static str, steps: &'static [Step]) -> Pattern {
    bare(trigger, Position::Anywhere, steps)
}

/// Creates a pattern of markup that carries no call.
pub(crate) const fn bare(
    trigger: &'static str,
    place: Position,
    steps: &'static [Step],
) -> Pattern {
    Pattern { trigger, place, steps, form: Form::Bare }
}

/// Whether a token opens or closes the reasoning of a family in which reasoning comes first.
pub(crate) fn is_marker(token: &str) -> bool {
    let is_within = |family: &ReasoningFamily| {
        family.place == Position::Start && [family.open, family.close].contains(&token)
    };
    FAMILIES.iter().any(is_within)
}

impl ReasoningFormat {
    /// Detects the format of a checkpoint by the tokens of its vocabulary, else by its template.
    pub(crate) fn detect(tokenizer: &Tokenizer, template: &str) -> Option<ReasoningFormat> {
        let known = |family: &&ReasoningFamily| {
            family.vocabulary.iter().all(|token| tokenizer.token_id(token).is_some())
        };
        let written = |family: &&ReasoningFamily| {
            template.contains(family.open) && template.contains(family.close)
        };
        let family = FAMILIES.iter().find(known).or_else(|| FAMILIES.iter().find(written))?;
        Some(ReasoningFormat { family })
    }

    /// Returns the format with this name or alias.
    pub fn named(name: &str) -> Option<ReasoningFormat> {
        let fits =
            |family: &&ReasoningFamily| family.name == name || family.aliases.contains(&name);
        FAMILIES.iter().find(fits).map(|family| ReasoningFormat { family })
    }

    /// Returns all names that [`ReasoningFormat::named`] accepts.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FAMILIES
            .iter()
            .flat_map(|family| std::iter::once(family.name).chain(family.aliases.iter().copied()))
    }

    /// Returns the name of the format.
    pub fn name(&self) -> &'static str {
        self.family.name
    }

    /// Returns the text that opens the reasoning.
    pub fn open(&self) -> &'static str {
        self.family.open
    }

    /// Returns the text that closes the reasoning.
    pub fn close(&self) -> &'static str {
        self.family.close
    }

    /// Returns the tokens that open the reasoning.
    pub fn open_tokens(&self, tokenizer: &Tokenizer) -> Vec<TokenId> {
        tokens(tokenizer, self.family.open)
    }

    /// Returns the tokens that close the reasoning.
    pub fn close_tokens(&self, tokenizer: &Tokenizer) -> Vec<TokenId> {
        tokens(tokenizer, self.family.close)
    }

    /// Returns the tokens with which to continue when the reasoning is cut short: its closing
    /// marker and the text between it and the answer.
    pub fn cut_tokens(&self, tokenizer: &Tokenizer) -> Vec<TokenId> {
        tokens(tokenizer, &format!("{}{}", self.family.close, self.family.resume))
    }

    /// Whether a prompt with this end has opened the reasoning.
    pub fn is_opened_by(&self, prompt: &str) -> bool {
        prompt.trim_ascii_end().ends_with(self.family.open)
    }
}

impl std::fmt::Debug for ReasoningFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ReasoningFormat").field(&self.family.name).finish()
    }
}

impl PartialEq for ReasoningFormat {
    fn eq(&self, other: &ReasoningFormat) -> bool {
        self.family.name == other.family.name
    }
}

impl Tokenizer {
    /// Whether the vocabulary has special tokens that mark reasoning.
    pub fn has_thinking(&self) -> bool {
        is_in_vocabulary(|token| self.token_id(token).is_some())
    }
}

/// Returns the tokens of a marker; none if the tokenizer refuses it, which only happens to texts of
/// megabytes.
fn tokens(tokenizer: &Tokenizer, marker: &str) -> Vec<TokenId> {
    tokenizer.encode(marker, false).unwrap_or_default()
}

/// Whether a vocabulary has special tokens that mark reasoning.
fn is_in_vocabulary(known: impl Fn(&str) -> bool) -> bool {
    let families = FAMILIES.iter().map(|family| family.vocabulary);
    families.chain([&OTHER_VOCABULARY[..]]).any(|tokens| tokens.iter().all(|token| known(token)))
}
