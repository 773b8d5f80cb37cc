//! Who may decide, before each draw, which tokens come into question.

use std::fmt;

use jackalope_protocol::{Mask, TokenId};

/// Follows one request's output and bounds what may come next.
///
/// A request with a guide that bounds nothing is planned ahead like any other. Once the guide
/// names what the next token may be, that token is planned only when the one before it is known; a draw that
/// was planned too early is thrown away. The guide's state lives and dies with the request: no
/// preemption and no loss of ranks touches it.
pub trait Guide: Send + fmt::Debug {
    /// Says which tokens may come next. A guide that answers [`Allowed::Masked`] has taken from
    /// `mask`, which allows everything, what may not; one that leaves nothing ends the request as if
    /// a stop token had been drawn.
    ///
    /// # Errors
    /// The guide cannot go on.
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<Allowed, GuideError>;

    /// Takes in a token of the output. Called once for each, in order.
    ///
    /// # Errors
    /// The guide cannot go on.
    fn accept(&mut self, token: TokenId) -> Result<(), GuideError>;

    /// A copy in the same state.
    fn clone_boxed(&self) -> Box<dyn Guide>;
}

/// What a guide says of the next token.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Allowed {
    /// It may be any.
    All,
    /// It may be any that does not end the generation.
    NotEnd,
    /// It is one of the mask's.
    Masked,
}

/// A guide cannot go on; its request ends with this message.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct GuideError {
    /// What happened, possibly with a `hint:` line.
    pub message: String,
}

/// A set of tokens, with a bit for each token of the model.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TokenMask {
    /// Bit `token % 32` of word `token / 32`. Bits from `vocab_size` on are not looked at.
    words: Vec<u32>,
    vocab_size: u32,
}

impl TokenMask {
    /// All tokens below `vocab_size`.
    pub fn all(vocab_size: u32) -> TokenMask {
        TokenMask { words: vec![u32::MAX; vocab_size.div_ceil(32) as usize], vocab_size }
    }

    /// These tokens; those the model does not have are left out.
    pub fn only(tokens: &[TokenId], vocab_size: u32) -> TokenMask {
        let mut mask = TokenMask::all(vocab_size);
        mask.words.fill(0);
        for &token in tokens {
            mask.allow(token);
        }
        mask
    }

    /// The bits, to be written whole: bit `token % 32` of word `token / 32`.
    pub fn words_mut(&mut self) -> &mut [u32] {
        &mut self.words
    }

    /// Puts a token in.
    pub fn allow(&mut self, token: TokenId) {
        if token < self.vocab_size {
            self.words[token as usize / 32] |= 1 << (token % 32);
        }
    }

    /// Takes a token out.
    pub fn ban(&mut self, token: TokenId) {
        if token < self.vocab_size {
            self.words[token as usize / 32] &= !(1 << (token % 32));
        }
    }

    /// Keeps what is in `other` too.
    pub fn intersect(&mut self, other: &TokenMask) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= other;
        }
    }

    /// Tokens below this may be in the set.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// True if no token is in the set.
    pub fn is_empty(&self) -> bool {
        let whole = self.vocab_size as usize / 32;
        let rest =
            self.words.get(whole).map_or(0, |word| word & ((1 << (self.vocab_size % 32)) - 1));
        rest == 0 && self.words[..whole].iter().all(|word| *word == 0)
    }

    /// The set as it is sent to ranks.
    pub fn to_mask(&self) -> Mask {
        Mask::of(&self.words, self.vocab_size)
    }

    /// The set without `tokens`; whole if nothing else is in it, for something has to be drawn.
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
            assert_eq!(all.to_mask(), Mask::All);
            let some: Vec<TokenId> = (0..vocab_size).filter(|token| token % 3 == 0).collect();
            let mask = TokenMask::only(&some, vocab_size);
            let allows = |token: TokenId| mask.to_mask().allows(token);
            assert!((0..vocab_size).all(|token| allows(token) == (token % 3 == 0)));
            let mut none = mask.clone();
            some.iter().for_each(|token| none.ban(*token));
            assert!(none.is_empty(), "{vocab_size}");
            assert_eq!(mask.without(&some), mask, "something has to be drawn");
            let mut both = mask.clone();
            both.intersect(&TokenMask::only(&[0], vocab_size));
            assert_eq!(both, TokenMask::only(&[0], vocab_size));
        }
    }
}
