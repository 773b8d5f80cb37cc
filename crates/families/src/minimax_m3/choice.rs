//! Which layers of `MiniMax` M3 have experts, and which choose blocks of positions, and how.

use super::config::Config;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension, setting};
use jackalope_config::rope::RopeSpec;
use jackalope_spec::{AttentionSpec, BlockChoice};

impl Config {
    /// Returns how blocks of positions are chosen; `None` if no layer chooses any.
    pub(super) fn block_choice(
        &self,
        attention: &AttentionSpec,
    ) -> Result<Option<BlockChoice>, SpecError> {
        let Some(len) = self.index_block_size else { return Ok(None) };
        let number = |field, number: Option<u32>| dimension(field, number.unwrap_or(0));
        let (heads, kv_heads) = (number("index_n_heads", self.index_n_heads)?, attention.kv_heads);
        if heads != 1 && heads != kv_heads {
            let expected = format!("1 or num_key_value_heads, {kv_heads}");
            return Err(bad_value("index_n_heads", heads, expected));
        }
        let head_dim = number("index_head_dim", self.index_head_dim)?;
        let num_chosen = number("index_topk_blocks", self.index_topk_blocks)?;
        let num_local = self.index_local_blocks;
        if num_chosen < num_local {
            let expected = format!("at most index_topk_blocks, {num_chosen}");
            return Err(bad_value("index_local_blocks", num_local, expected));
        }
        let dims = attention.rope.dims.min(head_dim);
        let rope = RopeSpec { dims, ..attention.rope.clone() };
        let len = dimension("index_block_size", len)?;
        Ok(Some(BlockChoice { heads, head_dim, len, num_chosen, num_local, rope }))
    }

    /// Returns which layers have experts.
    pub(super) fn are_sparse(&self, num_layers: usize) -> Result<Vec<bool>, SpecError> {
        let (types, numbers) = (self.mlp_layer_types.as_deref(), self.moe_layer_freq.as_deref());
        if types.is_none() && numbers.is_none() {
            // As in mlx-lm; mlx-vlm takes the first three layers for dense ones.
            return Ok(vec![true; num_layers]);
        }
        flags("moe_layer_freq", types, numbers, &["dense", "sparse"], num_layers)
    }

    /// Returns which layers choose blocks of positions.
    pub(super) fn choose(&self, num_layers: usize) -> Result<Vec<bool>, SpecError> {
        if self.index_block_size.is_none() {
            return Ok(vec![false; num_layers]);
        }
        let (types, numbers) = (self.layer_types.as_deref(), self.sparse_attention_freq.as_deref());
        let kinds = &["full_attention", "minimax_m3_sparse"];
        flags("sparse_attention_freq", types, numbers, kinds, num_layers)
    }
}

/// Returns which layers are of the second kind, by words or else by numbers that are not zero. mlx-lm and
/// mlx-vlm differ if neither is stated.
fn flags(
    field: &'static str,
    types: Option<&[String]>,
    numbers: Option<&[u32]>,
    kinds: &'static [&'static str; 2],
    num_layers: usize,
) -> Result<Vec<bool>, SpecError> {
    let is_second = |kind: &String| {
        setting("layer type", Some(kind), kinds)?;
        Ok(kind == kinds[1])
    };
    let found = match (types, numbers) {
        (Some(types), _) => {
            types.iter().map(is_second).collect::<Result<Vec<bool>, SpecError>>()?
        }
        (None, numbers) => numbers.unwrap_or_default().iter().map(|it| *it != 0).collect(),
    };
    if found.len() != num_layers {
        return Err(bad_value(field, found.len(), format!("{num_layers} entries")));
    }
    Ok(found)
}
