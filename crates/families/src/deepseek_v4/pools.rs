//! The pools of DeepSeek V4.

use super::config::Config;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension};
use jackalope_spec::{PoolForm, PoolIndexerSpec, PoolSelection, PoolSource, PoolSpec};

/// Length of the pools that overlap and of which an indexer chooses some.
const CHOSEN_LEN: u32 = 4;

impl Config {
    /// Returns a width of which the last elements are rotated.
    pub(super) fn rotated(&self, field: &'static str, dim: u32) -> Result<usize, SpecError> {
        let (dim, rope_dim) = (dimension(field, dim)?, self.qk_rope_head_dim as usize);
        let is_even = dim.checked_sub(rope_dim).is_some_and(|rest| rest.is_multiple_of(2));
        let expected = || format!("qk_rope_head_dim, {rope_dim}, and an even number more");
        if is_even { Ok(dim) } else { Err(bad_value(field, dim, expected())) }
    }

    /// Returns the ratio of a layer; 0 if it has no pools.
    pub(crate) fn ratio(&self, layer_idx: usize) -> u32 {
        self.compress_ratios.get(layer_idx).copied().unwrap_or(0)
    }

    /// Returns the indexers of layers that have one.
    pub(crate) fn indexer(&self) -> Result<PoolIndexerSpec, SpecError> {
        Ok(PoolIndexerSpec {
            heads: dimension("index_n_heads", self.index_n_heads)?,
            head_dim: self.rotated("index_head_dim", self.index_head_dim)?,
            num_chosen: dimension("index_topk", self.index_topk)?,
            candidates: None,
        })
    }

    /// Returns the pools of a layer.
    pub(super) fn pools(&self, ratio: u32) -> Result<PoolSpec, SpecError> {
        let overlaps = ratio == CHOSEN_LEN;
        let choice = overlaps.then(|| self.indexer().map(PoolSelection::Indexer)).transpose()?;
        let source = PoolSource::Own(PoolForm::Placed { overlaps });
        Ok(PoolSpec { len: ratio as usize, source, choice })
    }
}
