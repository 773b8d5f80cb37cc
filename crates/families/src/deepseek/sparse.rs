//! The indexers of DeepSeek V3.2 and GLM-5, which choose the positions that a query attends to.

use serde::Deserialize;
use serde_json::Value;

use super::indexer::indexer;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, count, parse, setting};
use jackalope_spec::{LatentSpec, PositionChoice};

/// Which layers have an indexer: those of `indexer_types`, else of
/// `index_topk_pattern`, else every `index_topk_freq`-th one after the first ones.
#[derive(Debug, Deserialize)]
struct Own {
    indexer_types: Option<Vec<String>>,
    index_topk_pattern: Option<Pattern>,
    index_topk_freq: Option<u32>,
    index_skip_topk_offset: Option<usize>,
}

/// A letter for each layer, or a word.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected letters in one string or a list of words")]
enum Pattern {
    Letters(String),
    Words(Vec<String>),
}

/// Returns for each layer how it chooses positions; `None` where `attend` says that it has no
/// attention.
/// `is_traditional` says how indexers rotate if that is not stated.
pub(super) fn choices(
    config: &Value,
    latent: &LatentSpec,
    attend: &[bool],
    is_traditional: bool,
) -> Result<Vec<Option<PositionChoice>>, SpecError> {
    let own: Own = parse(config)?;
    let indexer = indexer(config, latent, is_traditional)?;
    let num_chosen = indexer.attended_max();
    let mut last_full = None;
    let kinds = own.have_indexers(attend.len())?.into_iter().zip(attend).enumerate();
    let choices = kinds.map(|(idx, (is_full, attends))| {
        if !attends {
            return Ok(None);
        }
        if is_full {
            last_full = Some(idx);
            return Ok(Some(PositionChoice::Indexer(indexer.clone())));
        }
        let Some(layer_idx) = last_full else {
            return Err(bad_value("indexer_types[0]", "shared", "full"));
        };
        Ok(Some(PositionChoice::OfLayer { layer_idx, num_chosen }))
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
