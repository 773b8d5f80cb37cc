//! The tokenizer's vocabulary as the trie over which masks are computed.

use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::Tokenizer;

/// The bytes of all tokens of a tokenizer.
pub(super) struct Vocabulary {
    trie: TokTrie,
}

impl Vocabulary {
    /// Builds the trie of all tokens that are text. Special tokens get names that no text can
    /// contain (a byte that never occurs in UTF-8, then the name), so only a grammar that names
    /// them allows them. Ids without a token are in no mask.
    pub(super) fn of(tokenizer: &Tokenizer) -> TokEnv {
        let vocab_size = u32::try_from(tokenizer.vocab_size()).expect("token numbers have 32 bits");
        let words: Vec<Vec<u8>> = (0..vocab_size).map(|token| word(tokenizer, token)).collect();
        let ends = tokenizer.eos_token_ids();
        let ends: Vec<TokenId> = ends.iter().copied().filter(|it| *it < vocab_size).collect();
        let info = TokRxInfo::new(vocab_size, ends.first().copied().unwrap_or(TokenId::MAX));
        let mut trie = TokTrie::from(&info, &words);
        if !ends.is_empty() {
            trie = trie.with_eos_tokens(&ends);
        }
        std::sync::Arc::new(Vocabulary { trie })
    }
}

fn word(tokenizer: &Tokenizer, token: TokenId) -> Vec<u8> {
    const MARKER: u8 = TokTrie::SPECIAL_TOKEN_MARKER;
    if tokenizer.is_special(token) || tokenizer.eos_token_ids().contains(&token) {
        let mut word = vec![MARKER];
        word.extend(tokenizer.written(token).unwrap_or_default().into_bytes());
        return word;
    }
    let word = tokenizer.token_bytes(token);
    // UTF-8 never has such a byte, and the trie would take the token for a special one.
    if word.contains(&MARKER) { Vec::new() } else { word }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(text)
    }

    /// Returns false, so that no tokens are forced: the model may write an allowed text in any
    /// tokens.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
