//! Token masks: the tokens that may be sampled, in the smallest encoding.

use serde::{Deserialize, Serialize};

use crate::ids::TokenId;

/// The tokens that may be sampled. Ids outside of the model's vocabulary have no meaning here, and
/// some variants allow them.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum RowMask {
    /// Every token.
    #[default]
    All,
    /// Only these tokens, in ascending order.
    Only(Vec<TokenId>),
    /// All tokens but these, in ascending order.
    Except(Vec<TokenId>),
    /// The tokens whose bit is set: bit `token % 8`, counted from the lowest, of byte `token / 8`.
    Bits(Vec<u8>),
}

impl RowMask {
    /// Encodes a set in the smallest variant. The set is given as bits, bit `token % 32` of word
    /// `token / 32`, for the tokens below `vocab_size`.
    ///
    /// # Panics
    /// Panics if there are fewer bits than tokens.
    pub fn of(words: &[u32], vocab_size: u32) -> RowMask {
        /// Maximum encoded size of a token in a list.
        const TOKEN_BYTES: usize = 3;
        assert!(vocab_size as usize <= words.len() * 32, "every token has a bit");
        let is_allowed = |token: &TokenId| words[*token as usize / 32] >> (*token % 32) & 1 == 1;
        let num_allowed = (0..vocab_size).filter(is_allowed).count();
        let num_banned = vocab_size as usize - num_allowed;
        let list_max = (vocab_size as usize).div_ceil(8) / TOKEN_BYTES;
        if num_banned == 0 {
            RowMask::All
        } else if num_allowed <= num_banned && num_allowed <= list_max {
            RowMask::Only((0..vocab_size).filter(is_allowed).collect())
        } else if num_banned <= list_max {
            RowMask::Except((0..vocab_size).filter(|token| !is_allowed(token)).collect())
        } else {
            let bytes = words.iter().flat_map(|word| word.to_le_bytes());
            let mut bytes: Vec<u8> = bytes.take((vocab_size as usize).div_ceil(8)).collect();
            if !vocab_size.is_multiple_of(8) {
                let last = bytes.last_mut().expect("a list of one token or more has a byte");
                *last &= (1 << (vocab_size % 8)) - 1;
            }
            RowMask::Bits(bytes)
        }
    }

    /// Whether `token` may be sampled.
    pub fn allows(&self, token: TokenId) -> bool {
        match self {
            RowMask::All => true,
            RowMask::Only(tokens) => tokens.binary_search(&token).is_ok(),
            RowMask::Except(tokens) => tokens.binary_search(&token).is_err(),
            RowMask::Bits(bytes) => {
                let byte = bytes.get(token as usize / 8).copied().unwrap_or(0);
                byte >> (token % 8) & 1 == 1
            }
        }
    }

    /// Sets `banned` at the index of every token that may not be sampled.
    pub fn apply<T: Copy>(&self, values: &mut [T], banned: T) {
        match self {
            RowMask::All => {}
            RowMask::Only(tokens) => {
                let kept = |token: &TokenId| values.get(*token as usize).copied();
                let kept: Vec<Option<T>> = tokens.iter().map(kept).collect();
                values.fill(banned);
                for (token, value) in tokens.iter().zip(kept) {
                    if let Some(value) = value {
                        values[*token as usize] = value;
                    }
                }
            }
            RowMask::Except(tokens) => {
                for token in tokens {
                    if let Some(value) = values.get_mut(*token as usize) {
                        *value = banned;
                    }
                }
            }
            RowMask::Bits(bytes) => {
                for (eight, byte) in
                    values.chunks_mut(8).zip(bytes.iter().chain(std::iter::repeat(&0)))
                {
                    if *byte == u8::MAX {
                        continue;
                    }
                    for (bit, value) in eight.iter_mut().enumerate() {
                        if byte >> bit & 1 == 0 {
                            *value = banned;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_says_the_same_and_the_smallest_is_chosen() {
        let vocab_size = 1001;
        type IsAllowed = fn(u32) -> bool;
        let sets: [(IsAllowed, &str); 6] = [
            (|_| true, "All"),
            (|_| false, "Only"),
            (|token| token == 1000, "Only"),
            (|token| token % 100 != 7, "Except"),
            (|token| token % 2 == 0, "Bits"),
            (|token| token < 900, "Bits"),
        ];
        for (is_allowed, form) in sets {
            let mut words = vec![0u32; 40];
            (0..vocab_size)
                .filter(|token| is_allowed(*token))
                .for_each(|token| words[token as usize / 32] |= 1 << (token % 32));
            // Bits beyond the vocabulary are ignored.
            words[39] = u32::MAX;
            let mask = RowMask::of(&words, vocab_size);
            assert!(format!("{mask:?}").starts_with(form), "{form}: {mask:?}");
            assert!((0..vocab_size).all(|token| mask.allows(token) == is_allowed(token)), "{form}");
            let mut values: Vec<u32> = (0..vocab_size).collect();
            mask.apply(&mut values, u32::MAX);
            let expected = |token: u32| if is_allowed(token) { token } else { u32::MAX };
            assert!(
                (0..vocab_size).all(|token| values[token as usize] == expected(token)),
                "{form}"
            );
            let num_bytes = postcard::to_stdvec(&mask).unwrap().len();
            assert!(num_bytes <= 1001usize.div_ceil(8) + 4, "{form} takes {num_bytes} bytes");
        }
    }

    #[test]
    fn a_mask_from_a_stranger_is_harmless() {
        for mask in [
            RowMask::Only(vec![9, 1 << 30]),
            RowMask::Except(vec![u32::MAX]),
            RowMask::Bits(vec![1]),
        ] {
            let mut values = [5; 20];
            mask.apply(&mut values, 0);
            assert!(
                values
                    .iter()
                    .enumerate()
                    .all(|(token, it)| (*it == 5) == mask.allows(token as u32))
            );
        }
    }
}
