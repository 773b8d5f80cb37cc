//! What conversions of Falcon-H1 have done to its weights.

use super::config::Config;
use crate::state_space::StateSpaceLayer;
use jackalope_config::error::SpecError;
use jackalope_config::fields::factor;
use jackalope_spec::{NumberEdit, OriginalNumbers, OriginalSign, RowFactors, StateSpaceSizes};

/// Returns the factors by which conversions have multiplied weights, as mlx-lm does it: keys have no factor
/// of their own.
pub(super) fn original_numbers(
    config: &Config,
    space: &StateSpaceLayer,
) -> Result<OriginalNumbers, SpecError> {
    let StateSpaceSizes { heads, groups, head_dim, state_dim, .. } = space.sizes;
    // Gates, values, keys, queries, time steps.
    let (values, keys) = (heads * head_dim, groups * state_dim);
    let mut end_row = 0;
    let rows = [values, values, keys, keys, heads].into_iter().zip(config.ssm_multipliers);
    let rows = rows.map(|(len, own)| {
        end_row += len;
        RowFactors { end_row, factors: vec![config.ssm_in_multiplier, own] }
    });
    let [gate, down] = config.mlp_multipliers;
    let whole = [
        ("embed_tokens.weight", config.embedding_multiplier),
        ("lm_head.weight", config.lm_head_multiplier),
        ("q_proj.weight", config.attention_in_multiplier),
        ("k_proj.weight", config.attention_in_multiplier),
        ("o_proj.weight", config.attention_out_multiplier),
        ("out_proj.weight", config.ssm_out_multiplier),
        ("gate_proj.weight", gate),
        ("down_proj.weight", down),
    ];
    for (_, stated) in whole {
        factor("multiplier", stated)?;
    }
    let mut edits = vec![(".in_proj.weight", NumberEdit::Multiply(rows.collect()))];
    edits.extend(whole.map(|(ending, factor)| (ending, NumberEdit::multiply(factor))));
    let kernel = "model.layers.0.mamba.conv1d.weight".to_owned();
    Ok(OriginalNumbers { sign: OriginalSign::Kernel(kernel), edits })
}
