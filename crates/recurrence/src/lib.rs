//! Linear recurrences on MLX arrays: the gated delta rule (Yang, Kautz and Hatamizadeh 2024, "Gated
//! Delta Networks") and the state space of Mamba-2 (Dao and Gu 2024, "Transformers are SSMs"). The
//! memory of a sequence is a matrix `[value_dim, key_dim]` for each value head.
//!
//! ```text
//!   scan ─┬─ one token ──────────── step    stock operations
//!         ├─ several tokens ─────── chunks  stock operations, the tokens of a chunk at once
//!         └─ on a GPU, either ───── kernel  one operation, any number of heads and tokens
//! ```
//!
//! The states of sequences that decode lie side by side in slots ([`StateSlots`]). [`LayerStates`] are
//! those of one sequence and layer, at its present and at kept lengths. The crate knows nothing of
//! models, weights or KV caches.

mod chunks;
mod convolution;
mod kernel;
mod layer_states;
mod slots;
mod states;
mod step;
mod tokens;

use jackalope_mlx::Array;

pub use convolution::{convolution, dilated_convolution, taps};
pub use kernel::{KernelLanguage, KernelShape, kernel_source};
pub use layer_states::{ForkAt, LayerStates, StateStep};
pub use slots::{StateAssignment, StateSlot, StateSlots};
pub use states::StateArrays;
pub use tokens::{Rule, Scanned, Tokens};

/// Computes the tokens of each sequence from the state before them,
/// `[sequences, value_heads, value_dim, key_dim]`: with one kernel on a GPU, else with stock operations.
pub fn scan(tokens: &Tokens<'_>, state: &Array) -> Scanned {
    match KernelLanguage::of_device() {
        Some(language) if kernel::supports(tokens) => kernel::scan(tokens, state, language),
        _ => scan_stock(tokens, state),
    }
}

/// As [`scan`], with stock operations on every device.
pub fn scan_stock(tokens: &Tokens<'_>, state: &Array) -> Scanned {
    if tokens.queries.dim(1) == 1 { step::step(tokens, state) } else { chunks::scan(tokens, state) }
}

/// As [`scan`], with stock operations and one token after the other: the definition.
pub fn scan_by_token(tokens: &Tokens<'_>, state: &Array) -> Scanned {
    let at = |x: &Array, t: i32| x.slice_axis(1, t, t + 1);
    let mut state = state.clone();
    let results: Vec<Array> = (0..tokens.queries.dim(1))
        .map(|t| {
            let [queries, keys, values, log_decays, rates] =
                [tokens.queries, tokens.keys, tokens.values, tokens.log_decays, tokens.rates]
                    .map(|x| at(x, t));
            let token = Tokens {
                rule: tokens.rule,
                queries: &queries,
                keys: &keys,
                values: &values,
                log_decays: &log_decays,
                rates: &rates,
            };
            let Scanned { results, state: after } = step::step(&token, &state);
            state = after;
            results
        })
        .collect();
    let results = Array::concatenate(&results.iter().collect::<Vec<_>>(), 1);
    Scanned { results, state }
}
