//! The interface of constrained decoding: a constraint decides, before each token is sampled, which
//! tokens are allowed.

use std::fmt;

use jackalope_protocol::{RowMask, TokenId};

/// Tracks one request's output and limits the next token.
///
/// A request whose constraint allows all tokens is planned ahead like any other. Once the
/// constraint restricts the next token, that token is planned only when the previous one is known;
/// a token that was sampled too early is dropped. The constraint's state belongs to the request:
/// preemptions and losses of ranks do not affect it.
pub trait TokenConstraint: Send + fmt::Debug {
    /// Determines which tokens may come next. A constraint that returns [`AllowedTokens::Masked`]
    /// has removed the forbidden tokens from `mask`, which initially allows everything; if no token
    /// is left, the request ends as if a stop token had been sampled.
    ///
    /// # Errors
    /// Fails if the constraint cannot continue; the request then ends.
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError>;

    /// Advances the constraint by a token of the output. Called once for each token, in order.
    ///
    /// # Errors
    /// Fails if the constraint cannot continue; the request then ends.
    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError>;

    /// Returns a copy in the same state.
    fn clone_boxed(&self) -> Box<dyn TokenConstraint>;
}

/// A constraint's answer about the next token.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AllowedTokens {
    /// Any token is allowed.
    All,
    /// Any token is allowed that does not end the generation.
    NotEnd,
    /// The tokens in the mask are allowed.
    Masked,
}

/// Error of a constraint that cannot continue; its request ends with this message.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ConstraintError {
    /// What happened, possibly with a `hint:` line.
    pub message: String,
    /// Who can do something about it.
    pub fault: ConstraintFault,
}

/// Reason for which a constraint fails.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConstraintFault {
    /// The constraints of the request contradict each other.
    Contradiction,
    /// The structure that the request asks for takes too long to follow.
    TooSlow,
    /// The constraint cannot follow a structure that it has accepted.
    Internal,
}

/// A set of tokens, with a bit for each token of the model.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TokenMask {
    /// Bit `token % 32` of word `token / 32`. Bits from `vocab_size` on are ignored.
    words: Vec<u32>,
    vocab_size: u32,
}

impl TokenMask {
    /// Creates a mask of all tokens below `vocab_size`.
    pub fn all(vocab_size: u32) -> TokenMask {
        TokenMask { words: vec![u32::MAX; vocab_size.div_ceil(32) as usize], vocab_size }
    }

    /// Creates a mask of these tokens; tokens outside the vocabulary are ignored.
    pub fn only(tokens: &[TokenId], vocab_size: u32) -> TokenMask {
        let mut mask = TokenMask::all(vocab_size);
        mask.words.fill(0);
        for &token in tokens {
            mask.allow(token);
        }
        mask
    }

    /// Returns the bits, for writing all of them: bit `token % 32` of word `token / 32`.
    pub fn words_mut(&mut self) -> &mut [u32] {
        &mut self.words
    }

    /// Adds a token.
    pub fn allow(&mut self, token: TokenId) {
        if token < self.vocab_size {
            self.words[token as usize / 32] |= 1 << (token % 32);
        }
    }

    /// Removes a token.
    pub fn ban(&mut self, token: TokenId) {
        if token < self.vocab_size {
            self.words[token as usize / 32] &= !(1 << (token % 32));
        }
    }

    /// Keeps only the tokens that are also in `other`.
    pub fn intersect(&mut self, other: &TokenMask) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= other;
        }
    }

    /// Returns the vocabulary size; token ids in the set are less than this.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// Whether no token is in the set.
    pub fn is_empty(&self) -> bool {
        let whole = self.vocab_size as usize / 32;
        let rest =
            self.words.get(whole).map_or(0, |word| word & ((1 << (self.vocab_size % 32)) - 1));
        rest == 0 && self.words[..whole].iter().all(|word| *word == 0)
    }

    /// Returns the set in the form that is sent to ranks.
    pub fn to_mask(&self) -> RowMask {
        RowMask::of(&self.words, self.vocab_size)
    }

    /// Returns the set without `tokens`; unchanged if no other token is in it, because a token has
    /// to be sampled.
    pub(crate) fn without(&self, tokens: &[TokenId]) -> TokenMask {
        let mut rest = self.clone();
        tokens.iter().for_each(|token| rest.ban(*token));
        if rest.is_empty() { self.clone() } else { rest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_holds_what_was_put_in() {
        for vocab_size in [1, 7, 8, 31, 32, 33, 64, 1000] {
            let all = TokenMask::all(vocab_size);
            assert!(!all.is_empty());
            assert_eq!(all.to_mask(), RowMask::All);
            let some: Vec<TokenId> = (0..vocab_size).filter(|token| token % 3 == 0).collect();
            let mask = TokenMask::only(&some, vocab_size);
            let allows = |token: TokenId| mask.to_mask().allows(token);
            assert!((0..vocab_size).all(|token| allows(token) == (token % 3 == 0)));
            let mut none = mask.clone();
            some.iter().for_each(|token| none.ban(*token));
            assert!(none.is_empty(), "{vocab_size}");
            assert_eq!(mask.without(&some), mask, "something has to be sampled");
            let mut both = mask.clone();
            both.intersect(&TokenMask::only(&[0], vocab_size));
            assert_eq!(both, TokenMask::only(&[0], vocab_size));
        }
    }
}
