//! Computes the memory of each rank, with the same split by which ranks load.

use std::ops::Range;

use jackalope_protocol::KV_BLOCK_TOKENS;
use jackalope_protocol::split::{
    HeadCut, Shares, Split, VOCAB_UNIT, cut_dimension, cut_heads, stages,
};

use super::model::{KvShape, LayerBytes, ModelFacts, PartCut, PartKind};

/// Number of parts into which weights of unknown shape are divided.
const ANYWHERE_PARTS: usize = 1024;

/// Memory of a rank's program, its libraries and their allocations before a model is loaded.
const RANK_BYTES: u64 = 256 << 20;

/// Number of rows in a step, whose activations exist at the same time.
const STEP_TOKENS: u64 = 512;

/// Number of rows whose logits exist at the same time.
const LOGIT_ROWS: u64 = 64;

/// Size of an activation; counted as f32.
const ACTIVATION_BYTES: u64 = 4;

/// The memory that a rank needs, in bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RankNeed {
    /// Weights.
    pub weights_bytes: u64,
    /// KV cache at the planned context.
    pub kv_bytes: u64,
    /// Everything else: program, activations, and a quarter of the KV cache for the copy that a
    /// growing cache makes of itself. The engine leaves the same part free when it budgets caches.
    pub overhead_bytes: u64,
}

impl RankNeed {
    /// Returns the sum of all parts.
    pub fn total(&self) -> u64 {
        self.weights_bytes + self.kv_bytes + self.overhead_bytes
    }
}

/// Returns what each rank of a split needs, with a KV cache for `context_tokens`.
///
/// # Panics
/// If there is no rank, a rank has nothing, or a pipeline is for another number of layers.
pub fn needs(model: &ModelFacts, split: &Split, context_tokens: u32) -> Vec<RankNeed> {
    let deal = Deal::new(model, split);
    (0..split.num_ranks()).map(|rank| need(model, &deal.part(rank), context_tokens)).collect()
}

/// Returns what a rank with this part needs.
pub(super) fn need(model: &ModelFacts, part: &Part, context_tokens: u32) -> RankNeed {
    let granules = context_tokens.div_ceil(KV_BLOCK_TOKENS);
    let cached_tokens = u64::from(granules) * u64::from(KV_BLOCK_TOKENS);
    let kv_bytes = part.kv_bytes_per_token * cached_tokens;
    RankNeed {
        weights_bytes: part.weights_bytes,
        kv_bytes,
        overhead_bytes: RANK_BYTES + activation_bytes(model) + kv_bytes / 4,
    }
}

/// Returns an upper bound of the memory for activations during a step, whatever the rank's part is.
fn activation_bytes(model: &ModelFacts) -> u64 {
    let queries = model.heads.map_or(model.hidden_size, |heads| heads.heads * model.head_dim);
    let row = (4 * model.hidden_size + 2 * model.intermediate_size + 2 * queries) as u64;
    ACTIVATION_BYTES * (STEP_TOKENS * row + LOGIT_ROWS * model.vocab_size as u64)
}

/// The part of a model that a rank holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Part {
    /// Bytes of its weights.
    pub(super) weights_bytes: u64,
    /// Bytes of its weights that one token reads.
    pub(super) read_bytes: u64,
    /// Bytes of the KV cache for one token.
    pub(super) kv_bytes_per_token: u64,
}

/// A model divided among ranks.
pub(super) enum Deal<'a> {
    /// Each rank has a part of every layer.
    Tensor(Cuts<'a>),
    /// Each rank has whole layers: a range of layers by rank.
    Pipeline { model: &'a ModelFacts, stages: Vec<Range<usize>> },
}

impl<'a> Deal<'a> {
    /// # Panics
    /// If there is no rank, a rank has nothing, or a pipeline is for another number of layers.
    pub(super) fn new(model: &'a ModelFacts, split: &Split) -> Deal<'a> {
        match split {
            Split::Tensor(shares) => Deal::Tensor(Cuts::new(model, shares)),
            Split::Pipeline(layers) => {
                let stages = stages(layers, model.layers.len()).expect("made for this model");
                Deal::Pipeline { model, stages }
            }
        }
    }

    /// Returns the part of a rank.
    pub(super) fn part(&self, rank: usize) -> Part {
        match self {
            Deal::Tensor(cuts) => cuts.part(rank),
            Deal::Pipeline { model, stages } => stage(model, &stages[rank]),
        }
    }
}

/// Returns the part of a rank with these layers. The embedding is held with the first layer, the
/// head with the last one; all other weights outside of layers are held by every rank.
pub(super) fn stage(model: &ModelFacts, layers: &Range<usize>) -> Part {
    let num_layers = model.layers.len();
    let own = &model.layers[layers.clone()];
    let sum = |bytes: fn(&LayerBytes) -> u64, of: &[LayerBytes]| of.iter().map(bytes).sum::<u64>();
    let (embedding, head) = (model.bytes_of(PartKind::Embedding), model.bytes_of(PartKind::Head));
    let inside = sum(|it| it.all, &model.layers);
    let outside = model.weights_bytes().saturating_sub(inside + embedding + head);
    let (begins, ends) = (layers.start == 0, layers.end == num_layers);
    let head = if model.is_tied { embedding } else { head };
    let if_so = |is_held: bool, bytes: u64| if is_held { bytes } else { 0 };
    let tables = match (begins, ends, model.is_tied) {
        (true, true, true) => embedding,
        _ => if_so(begins, embedding) + if_so(ends, head),
    };
    let layers_bytes = sum(|it| it.all, own);
    let idle = sum(|it| it.experts, own) as f64 * (1.0 - model.active_experts);
    let read_bytes = layers_bytes - idle as u64 + outside + if_so(ends, head);
    let kv_bytes = model.kv_bytes_per_token() as u128 * own.len() as u128;
    let kv_bytes = kv_bytes.div_ceil(num_layers.max(1) as u128);
    Part {
        weights_bytes: layers_bytes + outside + tables,
        read_bytes,
        kv_bytes_per_token: u64::try_from(kv_bytes).unwrap_or(u64::MAX),
    }
}

/// A model whose every layer is divided.
pub(super) struct Cuts<'a> {
    model: &'a ModelFacts,
    heads: Vec<HeadCut>,
    /// For each part of the model: each rank's range, and the length of the whole.
    parts: Vec<(Vec<Range<usize>>, usize)>,
}

impl<'a> Cuts<'a> {
    fn new(model: &'a ModelFacts, shares: &[u32]) -> Cuts<'a> {
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
        Cuts { model, heads, parts }
    }

    fn part(&self, rank: usize) -> Part {
        // One row of an embedding is read, unless the embedding is also the head.
        let reads = |kind: PartKind| match kind {
            PartKind::Embedding if !self.model.is_tied => 0.0,
            PartKind::Experts => self.model.active_experts,
            _ => 1.0,
        };
        Part {
            weights_bytes: self.weights_bytes(rank, |_| 1.0),
            read_bytes: self.weights_bytes(rank, reads),
            kv_bytes_per_token: self.kv_bytes_per_token(rank),
        }
    }

    /// Returns the bytes of a rank's weights; each kind is multiplied by a factor from 0 to 1.
    fn weights_bytes(&self, rank: usize, factor: impl Fn(PartKind) -> f64) -> u64 {
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

    /// Returns the bytes of the KV cache for one token on a rank.
    fn kv_bytes_per_token(&self, rank: usize) -> u64 {
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
