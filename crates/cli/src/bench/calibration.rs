//! Finds out which form of request a server accepts, and how many words make a prompt of a given
//! number of tokens.
//!
//! Servers differ: some have no `/v1/completions`, some refuse unknown parameters, and there is no
//! common way to query the tokenizer. So small requests are sent first: one in each form until the
//! server answers, and then a longer one.

use std::time::{SystemTime, UNIX_EPOCH};

use super::stream::{Asking, Fault, Peer, TimedAnswer};

/// Numbers of words of the two requests.
const FEW_WORDS: u32 = 32;
const MANY_WORDS: u32 = 160;

/// Status codes of servers that do not know a path or a parameter.
const UNKNOWN: [u16; 5] = [400, 404, 405, 422, 501];

/// Short words that are one token each in most vocabularies.
const WORDS: [&str; 32] = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part", "place",
    "case", "week", "company", "system", "program", "question", "work", "number", "night", "point",
    "home",
];

/// Relation between the words and the tokens of a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PromptScale {
    /// Number of tokens around the words, such as those of a chat template.
    tokens_around: f64,
    tokens_per_word: f64,
}

/// Length of a prompt.
#[derive(Clone, Copy, Debug)]
struct PromptSize {
    words: u32,
    tokens: u64,
}

impl PromptSize {
    fn of(words: u32, tokens: u64) -> PromptSize {
        PromptSize { words, tokens }
    }
}

impl PromptScale {
    /// One token per word, for servers that do not report the number of tokens.
    const UNKNOWN: PromptScale = PromptScale { tokens_around: 0.0, tokens_per_word: 1.0 };

    /// Returns the line through two prompts with known numbers of words and tokens.
    fn through(few: PromptSize, many: PromptSize) -> PromptScale {
        let per_word = (many.tokens as f64 - few.tokens as f64) / f64::from(many.words - few.words);
        if per_word <= 0.0 {
            return PromptScale::UNKNOWN;
        }
        let tokens_around = few.tokens as f64 - per_word * f64::from(few.words);
        PromptScale { tokens_around: tokens_around.max(0.0), tokens_per_word: per_word }
    }

    /// Returns the number of words for a prompt of `num_tokens` tokens; at least one.
    fn num_words(self, num_tokens: u32) -> u32 {
        let words = (f64::from(num_tokens) - self.tokens_around) / self.tokens_per_word;
        words.round().max(1.0) as u32
    }
}

/// Form of the requests to a server.
#[derive(Debug)]
pub(super) struct Calibration {
    pub(super) asking: Asking,
    pub(super) scale: PromptScale,
    /// Makes the prompts of this measurement begin differently from those of an earlier one, which
    /// the server may still have in its prefix cache.
    salt: u64,
}

impl Calibration {
    /// Tries one form of request after another until `peer` answers.
    pub(super) fn of(peer: &Peer, model: Option<String>) -> anyhow::Result<Calibration> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let salt = now.map_or(0, |it| it.as_nanos() as u64) % 1_000_000_007;
        let model = model.or_else(|| peer.first_model()).unwrap_or_else(|| "default".to_owned());
        let mut last = None;
        for is_chat in [false, true] {
            for (ignores_end, wants_usage) in [(true, true), (false, true), (false, false)] {
                let asking = Asking { model: model.clone(), is_chat, ignores_end, wants_usage };
                match probe(peer, &asking, FEW_WORDS, salt) {
                    Ok(few) => {
                        return Ok(Calibration {
                            scale: scale(peer, &asking, &few, salt)?,
                            asking,
                            salt,
                        });
                    }
                    Err(fault) if fault.status().is_some_and(|it| UNKNOWN.contains(&it)) => {
                        last = Some(fault);
                    }
                    Err(fault) => return Err(refused(&fault)),
                }
            }
        }
        Err(refused(&last.expect("there is more than one way")))
    }

    /// Returns a prompt that begins differently from those of all other requests.
    pub(super) fn prompt(&self, num_tokens: u32, number: u32) -> String {
        words(self.scale.num_words(num_tokens), self.salt + u64::from(number) + 2)
    }
}

fn probe(peer: &Peer, asking: &Asking, num_words: u32, salt: u64) -> Result<TimedAnswer, Fault> {
    peer.ask(asking, &words(num_words, salt + u64::from(num_words == MANY_WORDS)), 2)
}

fn scale(
    peer: &Peer,
    asking: &Asking,
    few: &TimedAnswer,
    salt: u64,
) -> anyhow::Result<PromptScale> {
    let many = probe(peer, asking, MANY_WORDS, salt).map_err(|fault| refused(&fault))?;
    Ok(match (few.prompt_tokens, many.prompt_tokens) {
        (Some(few), Some(many)) => {
            PromptScale::through(PromptSize::of(FEW_WORDS, few), PromptSize::of(MANY_WORDS, many))
        }
        _ => PromptScale::UNKNOWN,
    })
}

fn refused(fault: &Fault) -> anyhow::Error {
    let hint = match fault.status() {
        Some(401 | 403) => "pass `--api-key-file FILE`",
        Some(404) => "`--model` takes a name that `GET /v1/models` lists",
        Some(_) => "the server's log has details",
        None => "`--url` takes the address of a server that speaks OpenAI's protocol, without /v1",
    };
    anyhow::anyhow!("a first small request failed: {}: {}\nhint: {hint}", fault.name, fault.detail)
}

/// Returns `num_words` words in an order that depends on `salt`, so that no other prompt begins
/// with the same words.
fn words(num_words: u32, salt: u64) -> String {
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        WORDS[(state >> 33) as usize % WORDS.len()]
    };
    (0..num_words).map(|_| next()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_scaled_to_tokens() {
        let scale = PromptScale::through(PromptSize::of(32, 58), PromptSize::of(160, 250));
        assert_eq!(scale, PromptScale { tokens_around: 10.0, tokens_per_word: 1.5 });
        assert_eq!(scale.num_words(512), 335);
        assert_eq!(scale.num_words(4), 1, "a prompt has a word");
        assert_eq!(
            PromptScale::through(PromptSize::of(32, 58), PromptSize::of(160, 58)),
            PromptScale::UNKNOWN
        );
    }

    #[test]
    fn prompts_begin_differently() {
        let prompts: Vec<String> = (0..500).map(|salt| words(9, salt)).collect();
        for (idx, prompt) in prompts.iter().enumerate() {
            assert_eq!(prompt.split(' ').count(), 9);
            assert!(prompts[..idx].iter().all(|other| other != prompt), "{prompt}");
        }
        assert!(words(99, 7).starts_with(&words(9, 7)), "lengths are cut from one text");
    }
}
