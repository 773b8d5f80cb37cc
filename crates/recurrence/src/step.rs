//! One token of each sequence.

use jackalope_mlx::Array;

use crate::tokens::{Rule, Scanned, Tokens};

/// Computes one token of each sequence.
pub(crate) fn step(tokens: &Tokens<'_>, state: &Array) -> Scanned {
    let Tokens { rule, queries, keys, values, log_decays, rates } = *tokens;
    let (num_sequences, key_heads, key_dim) = (queries.dim(0), queries.dim(2), queries.dim(3));
    let (value_heads, value_dim) = (values.dim(2), values.dim(3));
    let shared = value_heads / key_heads;
    let heads = |rows, columns| [num_sequences, key_heads, shared, rows, columns];
    let state = state.reshape(&heads(value_dim, key_dim));
    let one_of_group =
        |x: &Array, rows, columns| x.reshape(&[num_sequences, key_heads, 1, rows, columns]);
    // One for each head, or one for each element of its key.
    let decays = log_decays.exp().reshape(&heads(1, -1));
    let decayed = state.mul(&decays);
    let values = values.reshape(&heads(value_dim, 1));
    let change = match rule {
        Rule::Delta => values.sub(&decayed.matmul(&one_of_group(keys, key_dim, 1))),
        Rule::Add => values,
    };
    let added = change.mul(&rates.reshape(&heads(1, 1))).mul(&one_of_group(keys, 1, key_dim));
    let after = decayed.add(&added);
    let results = after.matmul(&one_of_group(queries, key_dim, 1));
    Scanned {
        results: results.reshape(&[num_sequences, 1, value_heads, value_dim]),
        state: after.reshape(&[num_sequences, value_heads, value_dim, key_dim]),
    }
}
