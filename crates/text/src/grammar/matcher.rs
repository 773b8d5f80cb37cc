//! Tracks the position of one answer in its grammar.

use std::fmt;
use std::time::{Duration, Instant};

use super::{GrammarError, MATCH_TIME, MATCH_TIME_PER_TOKEN, MATCHED_TOKENS_MAX};
use crate::TokenId;

/// The position of one answer in its grammar.
#[derive(Clone)]
pub struct Matcher {
    inner: llguidance::Matcher,
    num_tokens: usize,
    /// Whether an end token was accepted; nothing may follow it.
    is_over: bool,
    /// Time spent on masks and tokens.
    spent: Duration,
}

impl Matcher {
    pub(super) fn new(inner: llguidance::Matcher) -> Matcher {
        Matcher { inner, num_tokens: 0, is_over: false, spent: Duration::ZERO }
    }

    /// Sets the bit of every token that may come next, and clears all others. `words` has a bit for
    /// every token id of the model, the first one in the lowest bit of the first word. Ids beyond
    /// the tokenizer's vocabulary are never allowed. End tokens are allowed where the text may end;
    /// where it must end, only they are. After an end token, no bit is set.
    ///
    /// # Errors
    /// Fails if the grammar has become too complex to follow, or takes too long.
    pub fn fill(&mut self, words: &mut [u32]) -> Result<(), GrammarError> {
        self.within_budget(|matcher| matcher.fill_now(words))
    }

    fn fill_now(&mut self, words: &mut [u32]) -> Result<(), GrammarError> {
        words.fill(0);
        if self.is_over {
            return Ok(());
        }
        let mask = self.inner.compute_mask_or_eos().map_err(|err| failure(&err))?;
        for (word, allowed) in words.iter_mut().zip(mask.as_slice()) {
            *word = *allowed;
        }
        Ok(())
    }

    /// Advances by the sampled token.
    ///
    /// # Errors
    /// Fails if the grammar does not allow the token here, has become too complex to follow, or
    /// takes too long.
    pub fn accept(&mut self, token: TokenId) -> Result<(), GrammarError> {
        self.num_tokens += 1;
        self.within_budget(|matcher| matcher.accept_now(token))
    }

    /// Runs `work`, unless the time budget of the answer is already exceeded.
    fn within_budget<T>(
        &mut self,
        work: impl FnOnce(&mut Matcher) -> Result<T, GrammarError>,
    ) -> Result<T, GrammarError> {
        let num_tokens = self.num_tokens;
        let per_token =
            MATCH_TIME_PER_TOKEN.saturating_mul(u32::try_from(num_tokens).unwrap_or(u32::MAX));
        if MATCH_TIME + per_token < self.spent {
            return Err(GrammarError::TooSlow { spent: self.spent, num_tokens });
        }
        let begin = Instant::now();
        let done = work(self);
        self.spent += begin.elapsed();
        done
    }

    fn accept_now(&mut self, token: TokenId) -> Result<(), GrammarError> {
        if MATCHED_TOKENS_MAX < self.num_tokens {
            let reason = format!("more than {MATCHED_TOKENS_MAX} tokens were sampled");
            return Err(GrammarError::Match { reason });
        }
        let env = self.inner.tok_env().map_err(|err| failure(&err))?;
        let is_end = env.tok_trie().eos_tokens().contains(&token);
        let is_known = (token as usize) < env.tok_trie().vocab_size();
        if !is_known || self.is_over || (self.inner.is_stopped() && !is_end) {
            return Err(GrammarError::Forbidden { token });
        }
        if is_end && self.may_end()? {
            self.is_over = true;
            return Ok(());
        }
        match self.inner.try_consume_tokens(&[token]).map_err(|err| failure(&err))? {
            0 => Err(GrammarError::Forbidden { token }),
            _ => Ok(()),
        }
    }

    /// Whether the text so far is complete: an end token is allowed, possibly among others.
    ///
    /// # Errors
    /// Fails if the grammar has become too complex to follow.
    pub fn may_end(&mut self) -> Result<bool, GrammarError> {
        if self.is_over || (self.inner.is_stopped() && !self.inner.is_error()) {
            return Ok(true);
        }
        self.inner.is_accepting().map_err(|err| failure(&err))
    }

    /// Whether an end token was accepted.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

/// Maximum number of characters of a compiler message that are passed on.
const REASON_CHARS_MAX: usize = 300;

/// Returns the first line of a message, truncated if it is long. The further lines dump the parser;
/// only those of a regular expression end with the reason.
pub(super) fn first_line(message: &str) -> String {
    let mut lines = message.lines();
    let mut line = lines.next().unwrap_or_default().to_owned();
    if line.ends_with("regex parse error:") {
        let reason = lines.find_map(|it| it.strip_prefix("error: "));
        line.extend(reason.map(|it| format!(" {it}")));
    }
    if let Some((end, _)) = line.char_indices().nth(REASON_CHARS_MAX) {
        line.truncate(end);
        line.push('…');
    }
    line
}

fn failure(err: &impl fmt::Display) -> GrammarError {
    GrammarError::Match { reason: first_line(&err.to_string()) }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher")
            .field("num_tokens", &self.num_tokens)
            .field("is_over", &self.is_over)
            .finish_non_exhaustive()
    }
}
