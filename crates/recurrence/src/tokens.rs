//! The inputs and results of a scan.

use jackalope_mlx::Array;

/// What a token adds to the state `S`, after it has decayed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rule {
    /// `rate * (value - S key) keyᵀ`.
    Delta,
    /// `rate * value keyᵀ`.
    Add,
}

/// The tokens of sequences, the same number `seq` of each, in single precision. A key head serves
/// `value_heads / key_heads` consecutive value heads.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// What a token adds to the state.
    pub rule: Rule,
    /// The queries of the tokens, `[sequences, seq, key_heads, key_dim]`.
    pub queries: &'a Array,
    /// The keys of the tokens, `[sequences, seq, key_heads, key_dim]`.
    pub keys: &'a Array,
    /// The values of the tokens, `[sequences, seq, value_heads, value_dim]`.
    pub values: &'a Array,
    /// Logarithms of the factors by which the state decays before a token, at most 0: one for each
    /// head, `[sequences, seq, value_heads]`, or one for each element of its key,
    /// `[sequences, seq, value_heads, key_dim]`.
    pub log_decays: &'a Array,
    /// The `rate` of each token in [`Rule`], `[sequences, seq, value_heads]`.
    pub rates: &'a Array,
}

/// What a scan returns.
#[derive(Clone, Debug)]
pub struct Scanned {
    /// `S query` after each token, `[sequences, seq, value_heads, value_dim]`.
    pub results: Array,
    /// State after the last token, `[sequences, value_heads, value_dim, key_dim]`.
    pub state: Array,
}
