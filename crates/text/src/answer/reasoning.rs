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
    /// Beginnings of calls that end the reasoning as its closing marker does.
    pub(crate) calls: &'static [&'static str],
    /// Markup of the answer that is neither reasoning nor a call.
    pub(crate) markup: &'static [Pattern],
    /// Lists of strings in the family's chat templates, for a family whose markers others have
    /// too; a template belongs to the family if it contains every string of one list.
    signs: &'static [&'static [&'static str]],
    /// Tokens that every model of the family has in its vocabulary; empty if its markers are plain
    /// text.
    vocabulary: &'static [&'static str],
}

/// All families, in order of detection: a checkpoint belongs to the first one whose signs its
/// template has, else to the first one whose vocabulary it has, else to the first one whose markers
/// its template has. Families with tokens that no other family has come first.
static FAMILIES: [ReasoningFamily; 17] = [
    ReasoningFamily {
        name: "harmony",
        aliases: &["gpt_oss", "openai_gptoss"],
        resume: "<|start|>assistant<|channel|>final<|message|>",
        place: Position::Anywhere,
        markup: HARMONY_MARKUP,
        vocabulary: &["<|channel|>", "<|message|>", "<|start|>", "<|end|>"],
        ..between("<|channel|>analysis<|message|>", "<|end|>")
    },
    ReasoningFamily {
        name: "solar_open",
        resume: "<|begin|>assistant<|content|>",
        place: Position::Anywhere,
        markup: SOLAR_MARKUP,
        vocabulary: &["<|think|>", "<|content|>", "<|begin|>", "<|end|>"],
        ..between("<|think|>", "<|end|>")
    },
    ReasoningFamily {
        name: "gemma4",
        resume: "",
        place: Position::Anywhere,
        vocabulary: &["<|channel>", "<channel|>"],
        ..between("<|channel>thought", "<channel|>")
    },
    ReasoningFamily {
        name: "kimi_k3",
        resume: "<|open|>response<|sep|>",
        calls: &["<|open|>tools<|sep|>"],
        markup: KIMI_K3_MARKUP,
        vocabulary: &["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"],
        ..between("<|open|>think<|sep|>", "<|close|>think<|sep|>")
    },
    ReasoningFamily {
        name: "cohere",
        aliases: &["command_r7b", "command_a", "cohere_command3", "cohere_command4"],
        resume: "<|START_RESPONSE|>",
        markup: COHERE_MARKUP,
        vocabulary: &["<|START_THINKING|>", "<|END_THINKING|>"],
        ..between("<|START_THINKING|>", "<|END_THINKING|>")
    },
    ReasoningFamily {
        name: "apertus",
        aliases: &["apertus2509"],
        resume: "",
        calls: &["<|tools_prefix|>"],
        vocabulary: &["<|inner_prefix|>", "<|inner_suffix|>"],
        ..between("<|inner_prefix|>", "<|inner_suffix|>")
    },
    ReasoningFamily {
        name: "longcat",
        vocabulary: &["<longcat_think>", "</longcat_think>"],
        ..between("<longcat_think>", "</longcat_think>")
    },
    ReasoningFamily {
        name: "think_marks",
        aliases: &["solar_open2"],
        vocabulary: &["<|think:start|>", "<|think:end|>"],
        ..between("<|think:start|>", "<|think:end|>")
    },
    ReasoningFamily {
        name: "seed_oss",
        vocabulary: &["<seed:think>"],
        ..between("<seed:think>", "</seed:think>")
    },
    ReasoningFamily {
        name: "minimax_m3",
        // An answer without reasoning may begin with the closing marker.
        markup: &[bare("</mm:think>", Position::Start, &[Step::Literal("</mm:think>")])],
        vocabulary: &["<mm:think>", "</mm:think>"],
        ..between("<mm:think>", "</mm:think>")
    },
    ReasoningFamily {
        name: "mistral",
        aliases: &["magistral"],
        vocabulary: &["[THINK]", "[/THINK]"],
        ..between("[THINK]", "[/THINK]")
    },
    ReasoningFamily {
        name: "minicpm3",
        vocabulary: &["<|thought_start|>", "<|thought_end|>"],
        ..between("<|thought_start|>", "<|thought_end|>")
    },
    ReasoningFamily {
        name: "kimi_vl",
        aliases: &["kimi"],
        vocabulary: &["◁think▷", "◁/think▷"],
        ..between("◁think▷", "◁/think▷")
    },
    ReasoningFamily {
        name: "hunyuan_a13b",
        aliases: &["hunyuan"],
        signs: &[&["<think>", "<|extra_0|>"], &["<think>", "<｜hy_Assistant｜>"]],
        markup: HUNYUAN_MARKUP,
        ..between("<think>", "</think>")
    },
    ReasoningFamily {
        name: "ernie45",
        signs: &[&["<think>", "<response>"]],
        markup: ERNIE_MARKUP,
        vocabulary: &["<think>", "</think>", "<response>", "</response>"],
        ..between("<think>", "</think>")
    },
    ReasoningFamily {
        name: "think",
        aliases: &["deepseek_r1", "qwen3", "glm4", "glm45", "minimax_m2", "step3p5", "poolside_v1"],
        vocabulary: &["<think>", "</think>"],
        ..between("<think>", "</think>")
    },
    ReasoningFamily {
        name: "granite",
        ..between("Here is my thought process:", "Here is my response:")
    },
];

/// Creates a family with two markers around the reasoning, which comes before the answer.
const fn between(open: &'static str, close: &'static str) -> ReasoningFamily {
    ReasoningFamily {
        name: "",
        aliases: &[],
        open,
        close,
        resume: "\n\n",
        place: Position::Start,
        calls: &[],
        markup: &[],
        signs: &[],
        vocabulary: &[],
    }
}

/// Messages of Solar Open. The text of a message to the user is content.
const SOLAR_MARKUP: &[Pattern] = &[
    alone("<|begin|>assistant", &[Step::Literal("<|begin|>assistant")]),
    alone("<|content|>", &[Step::Literal("<|content|>")]),
    alone("<|end|>", &[Step::Literal("<|end|>")]),
    alone("<|flush|>", &[Step::Literal("<|flush|>")]),
    alone("<|calls|>", &[Step::Literal("<|calls|>")]),
];

/// The channel of Kimi K3 that holds the answer, and the end of the message.
const KIMI_K3_MARKUP: &[Pattern] = &[
    alone("<|open|>response<|sep|>", &[Step::Literal("<|open|>response<|sep|>")]),
    alone("<|close|>response<|sep|>", &[Step::Literal("<|close|>response<|sep|>")]),
    alone("<|close|>message<|sep|>", &[Step::Literal("<|close|>message<|sep|>")]),
];

/// The marks of Command R7B and Command A around the answer, and those of Command A Plus.
const COHERE_MARKUP: &[Pattern] = &[
    alone("<|START_RESPONSE|>", &[Step::Literal("<|START_RESPONSE|>")]),
    alone("<|END_RESPONSE|>", &[Step::Literal("<|END_RESPONSE|>")]),
    alone("<|START_TEXT|>", &[Step::Literal("<|START_TEXT|>")]),
    alone("<|END_TEXT|>", &[Step::Literal("<|END_TEXT|>")]),
];

/// The tags of Hunyuan around the whole answer.
const HUNYUAN_MARKUP: &[Pattern] = &[
    bare("<answer>", Position::Start, &[Step::Literal("<answer>"), Step::Space]),
    alone("\n</answer>", &[Step::Literal("\n</answer>"), Step::Space, Step::End]),
    alone("</answer>", &[Step::Literal("</answer>"), Step::Space, Step::End]),
];

/// The tags of Ernie 4.5 around the whole answer, which Granite 3.3 has too.
const ERNIE_MARKUP: &[Pattern] = &[
    bare("<response>", Position::Start, &[Step::Literal("<response>"), Step::Space]),
    alone("\n</response>", &[Step::Literal("\n</response>"), Step::Space, Step::End]),
    alone("</response>", &[Step::Literal("</response>"), Step::Space, Step::End]),
];

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

impl ReasoningFamily {
    /// Whether a vocabulary has the special tokens of the family.
    fn is_within(&self, known: impl Fn(&str) -> bool) -> bool {
        !self.vocabulary.is_empty() && self.vocabulary.iter().all(|token| known(token))
    }
}

impl ReasoningFormat {
    /// Detects the format of a checkpoint from its template and its vocabulary.
    pub(crate) fn detect(tokenizer: &Tokenizer, template: &str) -> Option<ReasoningFormat> {
        let shows = |signs: &&[&str]| signs.iter().all(|sign| template.contains(sign));
        let signed = |family: &&ReasoningFamily| family.signs.iter().any(shows);
        let known = |family: &&ReasoningFamily| {
            family.is_within(|token| tokenizer.token_id(token).is_some())
        };
        let written = |family: &&ReasoningFamily| {
            let is_own = family.signs.is_empty();
            is_own && template.contains(family.open) && template.contains(family.close)
        };
        let all = || FAMILIES.iter();
        let family = all().find(signed).or_else(|| all().find(known));
        let family = family.or_else(|| all().find(written))?;
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
        FAMILIES.iter().any(|family| family.is_within(|token| self.token_id(token).is_some()))
    }
}

/// Returns the tokens of a marker; none if the tokenizer refuses it, which only happens to texts of
/// megabytes.
fn tokens(tokenizer: &Tokenizer, marker: &str) -> Vec<TokenId> {
    tokenizer.encode(marker, false).unwrap_or_default()
}
