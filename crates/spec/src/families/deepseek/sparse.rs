//! The indexers of DeepSeek V3.2 and GLM-5, which choose the positions that a query attends to.

use serde::Deserialize;
use serde_json::Value;

use crate::config::{bad_value, dimension, parse, setting};
use crate::error::SpecError;
use crate::latent::{IndexerSpec, LatentSpec};
use crate::rope::RopeSpec;

/// What the norm of an indexer's keys adds to their variance, as in mlx-lm.
const NORM_EPS: f32 = 1e-5;

#[derive(Debug, Deserialize)]
struct Own {
    index_n_heads: u32,
    index_head_dim: u32,
    index_topk: u32,
    indexer_rope_interleave: Option<bool>,
    /// Layers that attend to what an earlier layer has chosen are not computed.
    #[serde(default)]
    indexer_types: Vec<String>,
    index_topk_pattern: Option<String>,
    index_topk_freq: Option<u32>,
}

/// Adds the indexer of a configuration. `is_traditional` says how it rotates if that is not stated.
pub(super) fn with_indexer(
    config: &Value,
    latent: LatentSpec,
    is_traditional: bool,
) -> Result<LatentSpec, SpecError> {
    let own: Own = parse(config)?;
    for kind in &own.indexer_types {
        setting("indexer type", Some(kind), &["full"])?;
    }
    if let Some(pattern) = own.index_topk_pattern.filter(|it| it.contains(|kind| kind != 'F')) {
        return Err(bad_value("index_topk_pattern", pattern, "an indexer in every layer"));
    }
    if let Some(frequency) = own.index_topk_freq.filter(|it| *it != 1) {
        return Err(bad_value("index_topk_freq", frequency, "1, an indexer in every layer"));
    }
    if latent.q_rank.is_none() {
        return Err(bad_value("q_lora_rank", "absent", "a number"));
    }
    let head_dim = dimension("index_head_dim", own.index_head_dim)?;
    if head_dim < latent.rope_dim {
        let expected = format!("at least qk_rope_head_dim, {}", latent.rope_dim);
        return Err(bad_value("index_head_dim", head_dim, expected));
    }
    let rope = latent.rope.clone().expect("this attention rotates");
    let is_traditional = own.indexer_rope_interleave.unwrap_or(is_traditional);
    let indexer = IndexerSpec {
        heads: dimension("index_n_heads", own.index_n_heads)?,
        head_dim,
        num_chosen: dimension("index_topk", own.index_topk)?,
        rope: RopeSpec { is_traditional, ..rope },
        norm_eps: NORM_EPS,
    };
    Ok(LatentSpec { indexer: Some(indexer), ..latent })
}
