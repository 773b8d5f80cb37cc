//! Fill-in-the-middle: text between a prompt and a suffix, for models trained for it (Bavarian et
//! al., "Efficient training of language models to fill in the middle", 2022: prefix, suffix,
//! middle).

use jackalope_protocol::TokenId;
use jackalope_text::Tokenizer;

use crate::error::ApiError;

/// The special tokens before the prefix, the suffix and the middle, for each known model family.
const FAMILIES: [[&str; 3]; 3] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
];

/// The tokens around a prompt whose completion goes before a suffix.
#[derive(Debug)]
pub(super) struct Infill {
    before: Vec<TokenId>,
    after: Vec<TokenId>,
}

impl Infill {
    /// Encodes the suffix.
    ///
    /// # Errors
    /// Returns an error if the tokenizer has no fill-in-the-middle tokens, or cannot encode the
    /// suffix.
    pub(super) fn new(suffix: &str, tokenizer: &Tokenizer) -> Result<Infill, ApiError> {
        let ids = |family: &[&str; 3]| {
            let ids: Vec<TokenId> =
                family.iter().filter_map(|token| tokenizer.token_id(token)).collect();
            <[TokenId; 3]>::try_from(ids).ok()
        };
        let Some([prefix, suffix_mark, middle]) = FAMILIES.iter().find_map(ids) else {
            let hint = "this model writes only what comes after the prompt";
            return Err(ApiError::not_supported("suffix", hint));
        };
        let refused = |err| ApiError::from_text(err, "suffix");
        let mut before = tokenizer.encode_prompt("").map_err(refused)?;
        before.push(prefix);
        let mut after = vec![suffix_mark];
        after.extend(tokenizer.encode(suffix, false).map_err(refused)?);
        after.push(middle);
        Ok(Infill { before, after })
    }

    /// Puts the infill's tokens around the prompt's tokens.
    pub(super) fn around(&self, prompt: &[TokenId]) -> Vec<TokenId> {
        [&self.before, prompt, &self.after].concat()
    }
}
