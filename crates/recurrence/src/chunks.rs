//! Several tokens at once: the tokens of a chunk see one another through matrix products, and only
//! chunks follow one another. The number of operations grows with the number of chunks.
//!
//! With `G` the running sum of the logarithms of the decays in a chunk, `S` the state before it and
//! rows for its tokens (Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over
//! Sequence Length", section 3, with the decays of "Gated Delta Networks", section 3.3):
//!
//! ```text
//!   A[t, i] = rate[t] exp(G[t] - G[i]) (k[t] · k[i])                      for i < t, else 0
//!   U       = (I + A)⁻¹ (rate V - rate exp(G) K Sᵀ)                       what the tokens add
//!   out[t]  = exp(G[t]) q[t] Sᵀ + Σ exp(G[t] - G[i]) (q[t] · k[i]) U[i]   over i ≤ t
//!   S'      = exp(G[end]) S + Σ U[i]ᵀ exp(G[end] - G[i]) k[i]
//! ```
//!
//! Tokens that only add have `U = rate V`. Every exponent is at most 0, so that nothing overflows.

use jackalope_mlx::{Array, Dtype};

use crate::tokens::{Rule, Scanned, Tokens};

/// Number of tokens of a chunk whose states decay by one factor for each head.
const CHUNK_TOKENS: i32 = 64;

/// Number of tokens of a chunk whose states decay by a factor for each element of a key: every pair of
/// tokens takes `key_dim` factors.
const VECTOR_CHUNK_TOKENS: i32 = 16;

/// The chunks of all sequences. The last chunk is filled up with tokens that change nothing.
struct Chunks {
    rule: Rule,
    /// Number of tokens of a chunk, a power of two.
    len: i32,
    queries: Array,    // [sequences, heads, chunks, len, key_dim]
    keys: Array,       // [sequences, heads, chunks, len, key_dim]
    values: Array,     // [sequences, heads, chunks, len, value_dim]
    rates: Array,      // [sequences, heads, chunks, len, 1]
    decayed_by: Array, // [sequences, heads, chunks, len, 1 or key_dim]: G
}

/// Computes several tokens of each sequence from the state before them, chunk by chunk.
pub(crate) fn scan(tokens: &Tokens<'_>, state: &Array) -> Scanned {
    let (seq, value_heads) = (tokens.values.dim(1), tokens.values.dim(2));
    let chunks = Chunks::new(tokens);
    let (results, state) = chunks.scan(state);
    let [num_sequences, num_chunks, len, value_dim] =
        [results.dim(0), results.dim(2), results.dim(3), results.dim(4)];
    let results = results.transpose(&[0, 2, 3, 1, 4]);
    let results = results.reshape(&[num_sequences, num_chunks * len, value_heads, value_dim]);
    Scanned { results: results.slice_axis(1, 0, seq), state }
}

impl Chunks {
    fn new(tokens: &Tokens<'_>) -> Chunks {
        let Tokens { rule, queries, keys, values, log_decays, rates } = *tokens;
        let (seq, value_heads) = (values.dim(1), values.dim(2));
        let most = if log_decays.ndim() == 4 { VECTOR_CHUNK_TOKENS } else { CHUNK_TOKENS };
        let mut len = 1;
        while len < seq.min(most) {
            len *= 2;
        }
        let shared = value_heads / queries.dim(2);
        let of_keys = |x: &Array| {
            let x = if shared == 1 { x.clone() } else { x.repeat(shared, 2) };
            chunked(&x, len)
        };
        let wide = |x: &Array| if x.ndim() == 4 { x.clone() } else { x.expand_dims(3) };
        Chunks {
            rule,
            len,
            queries: of_keys(queries),
            keys: of_keys(keys),
            values: chunked(values, len),
            rates: chunked(&wide(rates), len),
            decayed_by: chunked(&wide(log_decays), len).cumsum(3),
        }
    }

    /// Returns the results `[sequences, heads, chunks, len, value_dim]`, and the state after them.
    fn scan(&self, state: &Array) -> (Array, Array) {
        let (num_chunks, end) = (self.keys.dim(2), self.len);
        let before = self.decayed_by.exp();
        let whole = self.decayed_by.slice_axis(3, end - 1, end); // [.., 1, 1 or key_dim]
        let queries = self.queries.mul(&before);
        let keys = self.keys.mul(&whole.sub(&self.decayed_by).exp());
        let whole = whole.exp();
        let [of_keys, of_queries] = self.products();
        let own = self.rates.mul(&self.values);
        let (added, removed) = match self.rule {
            Rule::Add => (own, None),
            Rule::Delta => {
                let inverse = inverse_with_unit_diagonal(&self.rates.mul(&of_keys));
                let removed = inverse.matmul(&self.rates.mul(&before).mul(&self.keys));
                (inverse.matmul(&own), Some(removed))
            }
        };
        let mut state = state.clone();
        let results = (0..num_chunks).map(|idx| {
            let at = |x: &Array| x.slice_axis(2, idx, idx + 1).squeeze(2);
            let transposed = state.swapaxes(-1, -2); // [sequences, heads, key_dim, value_dim]
            let added = match &removed {
                Some(removed) => at(&added).sub(&at(removed).matmul(&transposed)),
                None => at(&added),
            };
            let of_state = at(&queries).matmul(&transposed);
            let result = of_state.add(&at(&of_queries).matmul(&added));
            let change = added.swapaxes(-1, -2).matmul(&at(&keys));
            state = state.mul(&at(&whole)).add(&change);
            result
        });
        let results: Vec<Array> = results.collect();
        (Array::stack(&results.iter().collect::<Vec<_>>(), 2), state)
    }

    /// Returns the decayed products of the tokens' keys with earlier keys, and of their queries with
    /// earlier keys and their own, `[.., len, len]` each; zeros elsewhere.
    fn products(&self) -> [Array; 2] {
        let token = Array::arange(self.len, Dtype::I32);
        let earlier = token.expand_dims(0).less(&token.expand_dims(1));
        let up_to_own = token.expand_dims(0).less_equal(&token.expand_dims(1));
        let decayed_by = &self.decayed_by;
        let products = if decayed_by.dim(4) == 1 {
            let decays = decayed_by.sub(&decayed_by.swapaxes(-1, -2));
            let decays = decays.minimum(&Array::scalar(0.0)).exp();
            let keys = self.keys.swapaxes(-1, -2);
            [&self.keys, &self.queries].map(|x| x.matmul(&keys).mul(&decays))
        } else {
            // [.., len, len, key_dim]
            let decays = decayed_by.expand_dims(4).sub(&decayed_by.expand_dims(3));
            let decays = decays.minimum(&Array::scalar(0.0)).exp();
            let keys = self.keys.expand_dims(3).mul(&decays);
            [&self.keys, &self.queries].map(|x| x.expand_dims(4).mul(&keys).sum(-1, false))
        };
        let [of_keys, of_queries] = products;
        let zero = Array::scalar(0.0);
        [Array::where_(&earlier, &of_keys, &zero), Array::where_(&up_to_own, &of_queries, &zero)]
    }
}

/// Divides `x` `[sequences, seq, heads, width]` into chunks `[sequences, heads, chunks, len,
/// width]`; zeros fill up the last chunk.
fn chunked(x: &Array, len: i32) -> Array {
    let (num_sequences, seq, heads, width) = (x.dim(0), x.dim(1), x.dim(2), x.dim(3));
    let num_chunks = (seq + len - 1) / len;
    let missing = num_chunks * len - seq;
    let whole = if missing == 0 {
        x.clone()
    } else {
        let room = Array::zeros(&[num_sequences, missing, heads, width], x.dtype());
        Array::concatenate(&[x, &room], 1)
    };
    whole.reshape(&[num_sequences, num_chunks, len, heads, width]).transpose(&[0, 3, 1, 2, 4])
}

/// Returns `(I + a)⁻¹` for `a` `[.., len, len]` with zeros on and above the diagonal: of blocks of one
/// element first, then of pairs of blocks, where
/// `[[P, 0], [R, Q]]⁻¹ = [[P⁻¹, 0], [-Q⁻¹ R P⁻¹, Q⁻¹]]`.
fn inverse_with_unit_diagonal(a: &Array) -> Array {
    let (shape, len) = (a.shape(), a.dim(-1));
    let flat = a.reshape(&[-1, len * len]);
    let num_matrices = flat.dim(0);
    let mut inverse = Array::full(&[num_matrices, len, 1, 1], 1.0, a.dtype());
    let mut size = 1;
    while size < len {
        let num_pairs = len / (2 * size);
        let below = flat.take(&blocks_below(len, size), 1);
        let below = below.reshape(&[num_matrices, num_pairs, size, size]);
        let pairs = inverse.reshape(&[num_matrices, num_pairs, 2, size, size]);
        let [first, second] = [0, 1].map(|idx| pairs.slice_axis(2, idx, idx + 1).squeeze(2));
        let below = second.matmul(&below).matmul(&first).neg();
        let zeros = Array::zeros(&[num_matrices, num_pairs, size, size], a.dtype());
        let upper = Array::concatenate(&[&first, &zeros], 3);
        let lower = Array::concatenate(&[&below, &second], 3);
        inverse = Array::concatenate(&[&upper, &lower], 2);
        size *= 2;
    }
    inverse.reshape(&shape)
}

/// Returns the indices of some elements of a matrix of `len` columns that is stored row by row:
/// those of the blocks to the left of every second diagonal block, of `size` rows and columns each.
fn blocks_below(len: i32, size: i32) -> Array {
    let mut indices = Vec::new();
    for first in (0..len).step_by(2 * size as usize) {
        for row in first + size..first + 2 * size {
            indices.extend((first..first + size).map(|column| row * len + column));
        }
    }
    let num_indices = i32::try_from(indices.len()).expect("a chunk is short");
    Array::from_slice(&indices, &[num_indices])
}
