//! The bytes of each rank, with the cuts that ranks load by.

use std::ops::Range;

use jackalope_protocol::CACHE_GRANULE_TOKENS;
use jackalope_protocol::split::{HeadCut, Shares, VOCAB_UNIT, cut_dimension, cut_heads};

use super::model::{KvShape, ModelFacts, PartCut, PartKind};

/// Parts into which weights of unknown shape are divided.
const ANYWHERE_PARTS: usize = 1024;

/// A rank's program, its libraries and what they allocate before a model.
const RANK_BYTES: u64 = 256 << 20;

/// Rows of a step, whose activations live side by side.
const STEP_TOKENS: u64 = 512;

/// Rows whose logits live side by side.
const LOGIT_ROWS: u64 = 64;

/// Activations are counted in f32.
const ACTIVATION_BYTES: u64 = 4;

/// The memory a rank takes, in bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RankNeed {
    /// Weights.
    pub weights_bytes: u64,
    /// Keys and values at the planned context.
    pub kv_bytes: u64,
    /// Everything else: program, activations, and a quarter of the cache for the copy that a growing
    /// one makes of itself, which is what the engine leaves free when it budgets caches.
    pub overhead_bytes: u64,
}

impl RankNeed {
    /// All together.
    pub fn total(&self) -> u64 {
        self.weights_bytes + self.kv_bytes + self.overhead_bytes
    }
}

/// What each rank takes at these shares, with keys and values of so many tokens.
///
/// # Panics
/// If there is no rank, or one with a share of zero.
pub fn needs(model: &ModelFacts, shares: &[u32], context_tokens: u32) -> Vec<RankNeed> {
    let deal = Deal::new(model, shares);
    let granules = context_tokens.div_ceil(CACHE_GRANULE_TOKENS);
    let cached_tokens = u64::from(granules) * u64::from(CACHE_GRANULE_TOKENS);
    let needs = (0..shares.len()).map(|rank| {
        let kv_bytes = deal.kv_bytes_per_token(rank) * cached_tokens;
        RankNeed {
            weights_bytes: deal.weights_bytes(rank, |_| 1.0),
            kv_bytes,
            overhead_bytes: RANK_BYTES + activation_bytes(model) + kv_bytes / 4,
        }
    });
    needs.collect()
}

/// What lives while a step is computed, whatever the rank's part: an upper bound.
fn activation_bytes(model: &ModelFacts) -> u64 {
    let queries = model.heads.map_or(model.hidden_size, |heads| heads.heads * model.head_dim);
    let row = (4 * model.hidden_size + 2 * model.intermediate_size + 2 * queries) as u64;
    ACTIVATION_BYTES * (STEP_TOKENS * row + LOGIT_ROWS * model.vocab_size as u64)
}

/// A model dealt to ranks.
pub(super) struct Deal<'a> {
    model: &'a ModelFacts,
    heads: Vec<HeadCut>,
    /// For each part of the model each rank's range, and the length of the whole.
    parts: Vec<(Vec<Range<usize>>, usize)>,
}

impl<'a> Deal<'a> {
    /// # Panics
    /// If there is no rank, or one with a share of zero.
    pub(super) fn new(model: &'a ModelFacts, shares: &[u32]) -> Deal<'a> {
        let shares = Shares::new(shares.to_vec()).expect("every rank has a share");
        let heads = model.heads.map(|counts| cut_heads(counts, &shares)).unwrap_or_default();
        let dimension = |full: usize, unit: usize| {
            let cuts = cut_dimension(full, unit, &shares).into_iter();
            (cuts.map(|cut| cut.own).collect(), full)
        };
        let counts = |own: fn(&HeadCut) -> Range<usize>, full: usize| {
            (heads.iter().map(own).collect(), full)
        };
        let parts = model.parts.iter().map(|part| match (part.cut, model.heads) {
            (PartCut::Vocab, _) => dimension(model.vocab_size, VOCAB_UNIT),
            (PartCut::Inner { full, unit }, _) => dimension(full, unit),
            (PartCut::Queries, Some(all)) => counts(|cut| cut.heads.own.clone(), all.heads),
            (PartCut::Keys, Some(all)) => counts(|cut| cut.kv_heads.own.clone(), all.kv_heads),
            (PartCut::Whole, _) => (vec![0..1; shares.num_ranks()], 1),
            (PartCut::Anywhere | PartCut::Queries | PartCut::Keys, _) => {
                dimension(ANYWHERE_PARTS, 1)
            }
        });
        let parts = parts.collect();
        Deal { model, heads, parts }
    }

    /// Bytes of a rank's weights, each kind counted with a factor from 0 to 1.
    pub(super) fn weights_bytes(&self, rank: usize, factor: impl Fn(PartKind) -> f64) -> u64 {
        let parts = self.model.parts.iter().zip(&self.parts);
        let bytes = parts.map(|(part, (ranges, full))| {
            let upto = |end: usize| u128::from(part.bytes) * end as u128 / (*full).max(1) as u128;
            let range = &ranges[rank];
            let bytes = u64::try_from(upto(range.end) - upto(range.start)).unwrap_or(u64::MAX);
            match factor(part.kind) {
                1.0 => bytes,
                factor => (bytes as f64 * factor) as u64,
            }
        });
        bytes.sum()
    }

    /// Bytes of one token's keys and values on a rank.
    pub(super) fn kv_bytes_per_token(&self, rank: usize) -> u64 {
        let model = self.model;
        match (model.kv, self.heads.get(rank)) {
            (KvShape::PerHead { num_layers }, Some(cut)) => {
                2 * (num_layers * cut.kv_heads.len() * model.head_dim) as u64 * model.element_bytes
            }
            (KvShape::PerHead { .. }, None) => 0,
            (KvShape::Whole { bytes_per_token }, _) => bytes_per_token,
        }
    }
}
