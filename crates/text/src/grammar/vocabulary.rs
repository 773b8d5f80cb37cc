//! The vocabulary as the trie that masks are computed over.

use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::Tokenizer;

/// A tokenizer's tokens, each by its bytes.
pub(super) struct Vocabulary {
    trie: TokTrie,
}

impl Vocabulary {
    /// The trie of all tokens that are text. Special tokens are in it under names that no text
    /// reaches (a byte that UTF-8 does not have, then the name): only a grammar that names them
    /// allows them. Numbers without a token are in no mask.
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
    // No text has such a byte, and the trie would take it for a special token.
    if word.contains(&MARKER) { Vec::new() } else { word }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(text)
    }

    /// Nothing is forced: every way to write an allowed text stays open to the model.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
