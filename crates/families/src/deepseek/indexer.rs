//! The fields of an indexer.

use serde::Deserialize;
use serde_json::Value;

use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension, parse};
use jackalope_spec::{IndexerSpec, LatentSpec};

/// What the norm of an indexer's keys adds to their variance, as in mlx-lm.
const NORM_EPS: f32 = 1e-5;

/// The same where pools are chosen, as in mlx-vlm.
const POOLED_NORM_EPS: f32 = 1e-6;

#[derive(Debug, Deserialize)]
struct Own {
    index_n_heads: u32,
    index_head_dim: u32,
    index_topk: u32,
    indexer_rope_interleave: Option<bool>,
    index_kpool: Option<u32>,
    index_kpool_always_select_tail: Option<bool>,
    index_kpool_compress: Option<bool>,
}

/// Returns the indexer of latent attention. `is_traditional` says how it rotates if that is not stated.
///
/// # Errors
/// Fails if a number is out of bounds, or the indexer is of another kind.
pub(super) fn indexer(
    config: &Value,
    latent: &LatentSpec,
    is_traditional: bool,
) -> Result<IndexerSpec, SpecError> {
    let own: Own = parse(config)?;
    if latent.q_rank.is_none() {
        return Err(bad_value("q_lora_rank", "absent", "a number"));
    }
    let head_dim = dimension("index_head_dim", own.index_head_dim)?;
    if head_dim < latent.rope_dim {
        let expected = format!("at least qk_rope_head_dim, {}", latent.rope_dim);
        return Err(bad_value("index_head_dim", head_dim, expected));
    }
    let is_traditional = own.indexer_rope_interleave.unwrap_or(is_traditional);
    let num_chosen = dimension("index_topk", own.index_topk)?;
    let pool = own.index_kpool.map(|pool| dimension("index_kpool", pool)).transpose()?;
    if let Some(pool) = pool.filter(|pool| !num_chosen.is_multiple_of(*pool)) {
        let expected = format!("a multiple of index_kpool, {pool}");
        return Err(bad_value("index_topk", num_chosen, expected));
    }
    let stated = [
        ("index_kpool_always_select_tail", own.index_kpool_always_select_tail),
        ("index_kpool_compress", own.index_kpool_compress),
    ];
    if let Some((field, _)) = stated.iter().find(|(_, it)| pool.is_some() && *it == Some(false)) {
        return Err(bad_value(field, false, "true"));
    }
    Ok(IndexerSpec {
        heads: dimension("index_n_heads", own.index_n_heads)?,
        head_dim,
        num_chosen,
        pool,
        rope: latent.rope.clone().map(|rope| rope.with_pairs(is_traditional)),
        norm_eps: if pool.is_some() { POOLED_NORM_EPS } else { NORM_EPS },
    })
}
