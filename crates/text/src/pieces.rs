//! The bytes of every token as a table, so that detokenising a token is one look-up.

use crate::TokenId;
use crate::decoder::Decoder;

/// Maximum token id plus one; a larger one is a sign of a corrupt file. The largest vocabulary
/// known has 262,400.
const VOCABULARY_MAX: usize = 4 << 20;

/// Maximum size in bytes of all tokens together; 2 MB is usual.
const PIECES_BYTES_MAX: usize = 256 << 20;

/// The bytes that every token contributes to a text.
#[derive(Debug)]
pub(crate) struct Pieces {
    decoder: Decoder,
    /// Bytes of all tokens, concatenated.
    bytes: Vec<u8>,
    /// End of each token's bytes.
    ends: Vec<u32>,
    /// Kind of each token id.
    kinds: Vec<Kind>,
}

/// Kind of a token id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// No token: a hole in the vocabulary.
    Nothing,
    Text,
    /// A token that is not part of the text.
    Special,
}

impl Pieces {
    /// Builds the table; the error says why the vocabulary is malformed.
    pub(crate) fn of(
        tokenizer: &tokenizers::Tokenizer,
        decoder: Decoder,
    ) -> Result<Pieces, String> {
        let vocabulary = tokenizer.get_vocab(true);
        let len = vocabulary.values().max().map_or(0, |&max| max as usize + 1);
        if len > VOCABULARY_MAX {
            return Err(format!("token number {} is above {VOCABULARY_MAX}", len - 1));
        }
        let added = tokenizer.get_added_vocabulary();
        let mut pieces = Pieces {
            decoder,
            bytes: Vec::new(),
            ends: Vec::with_capacity(len),
            kinds: Vec::with_capacity(len),
        };
        for id in (0..).take(len) {
            let token = tokenizer.id_to_token(id);
            pieces.kinds.push(match &token {
                None => Kind::Nothing,
                Some(token) if added.is_special_token(token) => Kind::Special,
                Some(_) => Kind::Text,
            });
            let bytes = token.map(|token| pieces.decoder.bytes(&token, false)).unwrap_or_default();
            pieces.bytes.extend(bytes);
            if pieces.bytes.len() > PIECES_BYTES_MAX {
                return Err(format!("the tokens have more than {PIECES_BYTES_MAX} bytes"));
            }
            pieces.ends.push(u32::try_from(pieces.bytes.len()).expect("the limit fits"));
        }
        Ok(pieces)
    }

    /// Returns the largest token id plus one.
    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Returns the bytes of a token that is not the first of a text.
    pub(crate) fn bytes(&self, token: TokenId) -> &[u8] {
        let idx = token as usize;
        let Some(&end) = self.ends.get(idx) else { return &[] };
        let start = idx.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..end as usize]
    }

    pub(crate) fn is_token(&self, token: TokenId) -> bool {
        self.kind(token) != Kind::Nothing
    }

    pub(crate) fn is_special(&self, token: TokenId) -> bool {
        self.kind(token) == Kind::Special
    }

    pub(crate) fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    fn kind(&self, token: TokenId) -> Kind {
        self.kinds.get(token as usize).copied().unwrap_or(Kind::Nothing)
    }
}
