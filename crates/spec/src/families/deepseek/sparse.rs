//! The indexers of DeepSeek V3.2 and GLM-5, which choose the positions that a query attends to.

use serde::Deserialize;
use serde_json::Value;

use crate::config::{bad_value, count, dimension, parse, setting};
use crate::error::SpecError;
use crate::latent::{IndexerSpec, LatentSpec, PositionChoice};
use crate::rope::RopeSpec;

/// What the norm of an indexer's keys adds to their variance, as in mlx-lm.
const NORM_EPS: f32 = 1e-5;

/// Fields of an indexer, and which layers have one: those of `indexer_types`, else of
/// `index_topk_pattern`, else every `index_topk_freq`-th one after the first ones.
#[derive(Debug, Deserialize)]
struct Own {
    index_n_heads: u32,
    index_head_dim: u32,
    index_topk: u32,
    indexer_rope_interleave: Option<bool>,
    indexer_types: Option<Vec<String>>,
    index_topk_pattern: Option<Pattern>,
    index_topk_freq: Option<u32>,
    index_skip_topk_offset: Option<usize>,
}

/// A letter for each layer, or a word.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Pattern {
    Letters(String),
    Words(Vec<String>),
}

/// Returns for each layer how it chooses positions. `is_traditional` says how indexers rotate if that
/// is not stated.
pub(super) fn choices(
    config: &Value,
    latent: &LatentSpec,
    num_layers: usize,
    is_traditional: bool,
) -> Result<Vec<PositionChoice>, SpecError> {
    let own: Own = parse(config)?;
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
    let mut last_full = None;
    let choices = own.have_indexers(num_layers)?.into_iter().enumerate().map(|(idx, is_full)| {
        if is_full {
            last_full = Some(idx);
            return Ok(PositionChoice::Indexer(indexer.clone()));
        }
        let Some(layer_idx) = last_full else {
            return Err(bad_value("indexer_types[0]", "shared", "full"));
        };
        Ok(PositionChoice::OfLayer { layer_idx, num_chosen: indexer.num_chosen })
    });
    choices.collect()
}

impl Own {
    /// Returns for each layer whether it has an indexer; the others share the choice of the last one
    /// before them.
    fn have_indexers(&self, num_layers: usize) -> Result<Vec<bool>, SpecError> {
        let is_full = |word: &String| {
            setting("indexer type", Some(word), &["full", "shared"])?;
            Ok(word == "full")
        };
        let (field, kinds): (_, Result<Vec<bool>, SpecError>) =
            match (&self.indexer_types, &self.index_topk_pattern) {
                (Some(words), _) => ("indexer_types", words.iter().map(is_full).collect()),
                (None, Some(Pattern::Words(words))) => {
                    ("index_topk_pattern", words.iter().map(is_full).collect())
                }
                (None, Some(Pattern::Letters(letters))) => {
                    let is_full = |letter| match letter {
                        'F' => Ok(true),
                        'S' => Ok(false),
                        _ => Err(bad_value("index_topk_pattern", letters, "letters F and S")),
                    };
                    ("index_topk_pattern", letters.chars().map(is_full).collect())
                }
                (None, None) => return self.every_some(num_layers),
            };
        let kinds = kinds?;
        if kinds.len() != num_layers {
            return Err(bad_value(field, kinds.len(), format!("{num_layers} entries")));
        }
        Ok(kinds)
    }

    /// Returns for each layer whether it has an indexer, if every `index_topk_freq`-th has one.
    fn every_some(&self, num_layers: usize) -> Result<Vec<bool>, SpecError> {
        let frequency = count("index_topk_freq", self.index_topk_freq.unwrap_or(1))?;
        let offset = self.index_skip_topk_offset.unwrap_or(2);
        let is_full = |idx: usize| (idx + 1).saturating_sub(offset).is_multiple_of(frequency);
        Ok((0..num_layers).map(is_full).collect())
    }
}
