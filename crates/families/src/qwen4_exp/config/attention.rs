//! Attention to pools of positions.

use super::Config;
use crate::decoder::Sizes;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, count, dimension};
use jackalope_config::rope::RopeSpec;
use jackalope_spec::{AttentionSpec, OutputGate, PoolChoice, QkNorm};

/// Base of the rotations, and fraction of a head that is rotated, where they are not stated.
const DEFAULT_ROPE_THETA: f64 = 1e7;
const DEFAULT_ROTARY_FACTOR: f64 = 0.25;

impl Config {
    /// Returns the attention of the layers that have it.
    pub(in super::super) fn attention(&self, sizes: Sizes) -> Result<AttentionSpec, SpecError> {
        let head_dim = sizes.head_dim_or(self.head_dim)?;
        let rope = &self.decoder.rope;
        let dims = rope.rotated_dims(head_dim, Some(DEFAULT_ROTARY_FACTOR))?;
        let rope = rope.spec(dims, Some(DEFAULT_ROPE_THETA))?;
        Ok(AttentionSpec {
            has_qkv_bias: self.attention_bias,
            has_output_bias: self.attention_bias,
            output_gate: Some(OutputGate::Elements),
            qk_norm: Some(QkNorm::PerHead),
            pools: Some(self.pools(&rope)?),
            ..AttentionSpec::plain(
                sizes.heads,
                sizes.kv_heads(self.num_key_value_heads)?,
                head_dim,
                rope,
            )
        })
    }

    fn pools(&self, rope: &RopeSpec) -> Result<PoolChoice, SpecError> {
        let kv_heads = self.indexer_kv_heads.unwrap_or(1);
        if kv_heads != 1 {
            return Err(bad_value("indexer_kv_heads", kv_heads, "1"));
        }
        let head_dim = dimension("indexer_head_dim", self.indexer_head_dim.unwrap_or(128))?;
        if head_dim < rope.dims {
            let expected = format!("at least the rotated elements, {}", rope.dims);
            return Err(bad_value("indexer_head_dim", head_dim, expected));
        }
        let field = "indexer_compress_ratio";
        let len = dimension(field, self.indexer_compress_ratio.unwrap_or(4))?;
        let budget = dimension("indexer_budget", self.indexer_budget.unwrap_or(2048))?;
        if !budget.is_multiple_of(len) {
            return Err(bad_value(
                "indexer_budget",
                budget,
                format!("a multiple of {field}, {len}"),
            ));
        }
        let heads = count("indexer_n_heads", self.indexer_n_heads.unwrap_or(4))?;
        Ok(PoolChoice { heads, head_dim, len, num_chosen: budget / len, rope: rope.clone() })
    }
}
