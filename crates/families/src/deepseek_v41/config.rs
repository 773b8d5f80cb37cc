//! The fields of DeepSeek V4.1's configurations, and which layers share pools and choices.

use serde::Deserialize;

use super::engram::EngramConfig;
use crate::deepseek_v4::config::Config as BaseConfig;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, count, dimension};
use jackalope_spec::{
    PoolCandidates, PoolForm, PoolIndexerSpec, PoolSelection, PoolSource, PoolSpec,
};

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    gate_temp: f32,
    kv_source_layer_ids: Vec<usize>,
    index_source_layer_ids: Vec<usize>,
    /// Negative if there is none.
    candidate_source_layer_id: i64,
    candidate_topk_blocks: u32,
    candidate_block_size: u32,
    #[serde(flatten)]
    pub(super) engram: EngramConfig,
    #[serde(flatten)]
    pub(super) base: BaseConfig,
}

impl Config {
    /// Refuses what no reference computes.
    pub(super) fn check(&self) -> Result<(), SpecError> {
        if self.gate_temp != 1.0 {
            return Err(bad_value("gate_temp", self.gate_temp, "1"));
        }
        if self.base.n_shared_experts != 1 {
            return Err(bad_value("n_shared_experts", self.base.n_shared_experts, "1"));
        }
        for (field, dim) in
            [("head_dim", self.base.head_dim), ("index_head_dim", self.base.index_head_dim)]
        {
            // Vectors are rounded in blocks of 32 elements.
            if !dim.is_multiple_of(32) {
                return Err(bad_value(field, dim, "a multiple of 32"));
            }
        }
        let lacks_indexer = |source: &&usize| !self.index_source_layer_ids.contains(source);
        if let Some(source) = self.kv_source_layer_ids.iter().find(lacks_indexer) {
            let expected = "layers of index_source_layer_ids";
            return Err(bad_value("kv_source_layer_ids", source, expected));
        }
        let Some(source) = self.candidate_source() else { return Ok(()) };
        if self.kv_source_layer_ids.iter().max() != Some(&source) {
            let expected = "the last one of kv_source_layer_ids, or -1";
            return Err(bad_value("candidate_source_layer_id", source, expected));
        }
        Ok(())
    }

    /// Returns the number of the layer that chooses blocks of candidates, if one does.
    fn candidate_source(&self) -> Option<usize> {
        usize::try_from(self.candidate_source_layer_id)
            .ok()
            .filter(|_| 0 < self.candidate_topk_blocks)
    }

    /// Returns the pools of a layer, which are as long as its ratio.
    pub(super) fn pools(&self, layer_idx: usize, ratio: u32) -> Result<PoolSpec, SpecError> {
        let last = |layers: &[usize]| layers.iter().copied().filter(|it| *it <= layer_idx).max();
        let source = last(&self.kv_source_layer_ids).filter(|it| self.base.ratio(*it) == ratio);
        let Some(source) = source else {
            let expected = format!("{ratio} in the source of layer {layer_idx}");
            return Err(bad_value("compress_ratios", ratio, expected));
        };
        let chooser = last(&self.index_source_layer_ids).expect("a source has an indexer");
        if self.base.ratio(chooser) != ratio {
            let expected = "layers whose compress_ratios are those of the layers after them";
            return Err(bad_value("index_source_layer_ids", chooser, expected));
        }
        let choice = if chooser == layer_idx {
            let indexer = self.base.indexer()?;
            let candidates = self.candidates(layer_idx, indexer.num_chosen)?;
            PoolSelection::Indexer(PoolIndexerSpec { candidates, ..indexer })
        } else {
            PoolSelection::OfLayer(chooser)
        };
        let source = if source == layer_idx {
            PoolSource::Own(PoolForm::Plain)
        } else {
            PoolSource::OfLayer(source)
        };
        Ok(PoolSpec { len: ratio as usize, source, choice: Some(choice) })
    }

    fn candidates(
        &self,
        layer_idx: usize,
        num_chosen: usize,
    ) -> Result<Option<PoolCandidates>, SpecError> {
        let Some(source) = self.candidate_source().filter(|it| *it <= layer_idx) else {
            return Ok(None);
        };
        let len = dimension("candidate_block_size", self.candidate_block_size)?;
        let num_blocks = count("candidate_topk_blocks", self.candidate_topk_blocks)?;
        // The last block may have a single pool.
        if (num_blocks - 1) * len + 1 < num_chosen {
            let expected = format!("blocks of {num_chosen} pools");
            return Err(bad_value("candidate_topk_blocks", num_blocks, expected));
        }
        Ok(Some(if source == layer_idx {
            PoolCandidates::Blocks { len, num_blocks }
        } else {
            PoolCandidates::OfLayer { layer_idx: source, len }
        }))
    }
}
