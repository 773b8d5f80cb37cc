//! What one rank of a split holds and caches.

use std::ops::Range;

use jackalope_protocol::CacheCost;
use jackalope_protocol::split::{Cut, HeadCut, Shares, Split, cut_dimension, cut_heads, stages};

use crate::layout::{Division, LayerLayout, ModelLayout, WeightPart};
use crate::model::CacheKind;
use crate::tensor::TensorRole;

/// The part of a model that one rank holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankShard {
    /// Its layers.
    pub layers: Range<usize>,
    /// Bytes of its weights; it reads as many from the checkpoint.
    pub weights_bytes: u64,
    /// Part of `weights_bytes` that other ranks of the same layers hold too.
    pub replicated_bytes: u64,
    /// Bytes of its weights that one token reads: not the embedding, unless it is also the head, and
    /// only the experts that the token passes.
    pub active_bytes: u64,
    /// Bytes of its routed experts.
    pub expert_bytes: u64,
    /// Part of `active_bytes` that belongs to routed experts.
    pub active_expert_bytes: u64,
    /// Memory that its caches take.
    pub cache: CacheCost,
}

impl RankShard {
    /// Returns the bytes of weights that a step of `num_tokens` tokens reads. Each token chooses its
    /// experts on its own, so an expert that a token passes with probability p is read with
    /// probability `1 - (1 - p)^num_tokens`.
    pub fn read_bytes(&self, num_tokens: u32) -> f64 {
        let others = (self.active_bytes - self.active_expert_bytes) as f64;
        if self.expert_bytes == 0 {
            return others;
        }
        let missed = 1.0 - self.active_expert_bytes as f64 / self.expert_bytes as f64;
        others + self.expert_bytes as f64 * (1.0 - missed.powf(f64::from(num_tokens)))
    }
}

impl ModelLayout {
    /// Returns what each rank of a split holds, by rank; `None` if the split gives a rank nothing, is
    /// for another number of layers, or separates a layer from the one whose cache it reads.
    pub fn shards(&self, split: &Split) -> Option<Vec<RankShard>> {
        match split {
            Split::Tensor(shares) => Some(self.tensor_shards(&Shares::new(shares.clone())?)),
            Split::Pipeline(layers) => {
                let stages = stages(layers, self.layers.len())?;
                if !stages.iter().all(|stage| self.can_begin_stage(stage.start)) {
                    return None;
                }
                Some(stages.into_iter().map(|layers| self.stage_shard(layers)).collect())
            }
        }
    }

    /// Returns what each rank holds if all ranks hold a part of every layer, by rank.
    pub fn tensor_shards(&self, shares: &Shares) -> Vec<RankShard> {
        let mut cuts = Cuts { shares, known: Vec::new() };
        let mut empty = self.empty_shard(0..self.layers.len());
        empty.cache.state_bytes = self.layers.iter().map(LayerLayout::whole_state_bytes).sum();
        let mut shards = vec![empty; shares.num_ranks()];
        for (part, active) in &self.sums.parts {
            self.add_part(&mut shards, cuts.of(part.division), part, *active);
        }
        for (counts, cache) in &self.sums.caches {
            for (shard, own) in shards.iter_mut().zip(cuts.of(Division::Heads(*counts))) {
                shard.cache.state_bytes += own.len() as u64 * cache.state;
            }
            for (shard, own) in shards.iter_mut().zip(cuts.of(Division::KvHeads(*counts))) {
                shard.cache.bytes_per_token += own.len() as u64 * cache.per_position;
                shard.cache.bytes_per_token += if own.is_empty() { 0 } else { cache.shared };
                let window_bytes = own.len() as u64 * cache.per_window_position;
                shard.cache.window_bytes_per_token += window_bytes;
                shard.cache.window_bytes_per_token +=
                    if own.is_empty() { 0 } else { cache.shared_window };
                shard.cache.state_bytes += own.len() as u64 * cache.kv_state;
            }
        }
        shards
    }

    /// Returns what a rank holds that has these layers. The embedding is with the first layer, the
    /// head with the last one, the final norm on every rank.
    pub fn stage_shard(&self, layers: Range<usize>) -> RankShard {
        let (begins, ends) = (layers.start == 0, layers.end == self.layers.len());
        let mut shards = [self.empty_shard(layers.clone())];
        let mut cuts = Cuts { shares: &Shares::even(1), known: Vec::new() };
        for part in &self.outside {
            let is_held = match part.role {
                TensorRole::Embedding => begins || (self.is_tied && ends),
                TensorRole::Head => ends,
                TensorRole::PerLayerTable | TensorRole::PerLayerInput => begins,
                _ => true,
            };
            if is_held {
                self.add_part(&mut shards, cuts.of(part.division), part, 1.0);
            }
        }
        for layer in &self.layers[layers] {
            shards[0].cache.state_bytes += layer.whole_state_bytes();
            for part in &layer.parts {
                let cuts = cuts.of(part.division);
                self.add_part(&mut shards, cuts, part, layer.active_experts);
            }
            for (counts, cache) in layer.head_caches(&self.element_type) {
                let (heads, kv_heads) = (counts.heads as u64, counts.kv_heads as u64);
                shards[0].cache.bytes_per_token += kv_heads * cache.per_position + cache.shared;
                shards[0].cache.window_bytes_per_token +=
                    kv_heads * cache.per_window_position + cache.shared_window;
                shards[0].cache.state_bytes += heads * cache.state + kv_heads * cache.kv_state;
            }
        }
        let [shard] = shards;
        shard
    }

    fn empty_shard(&self, layers: Range<usize>) -> RankShard {
        let windows = self.layers[layers.clone()].iter().filter_map(|layer| match layer.cache {
            CacheKind::Window { window, .. } => Some(window),
            CacheKind::Pools { num_last, .. } => Some(num_last),
            _ => None,
        });
        let window_tokens = u32::try_from(windows.max().unwrap_or(0)).unwrap_or(u32::MAX);
        let cache = CacheCost { window_tokens, ..CacheCost::default() };
        RankShard { layers, cache, ..RankShard::default() }
    }

    /// Adds each rank's piece of a part to its shard.
    fn add_part(
        &self,
        shards: &mut [RankShard],
        cuts: &[Cut],
        part: &WeightPart,
        active_experts: f64,
    ) {
        for (shard, own) in shards.iter_mut().zip(cuts) {
            let bytes = part.bytes as u128 * own.len() as u128 / own.full.max(1) as u128;
            let bytes = u64::try_from(bytes).expect("no more than the whole");
            shard.weights_bytes += bytes;
            if own.is_shared {
                shard.replicated_bytes += bytes;
            }
            shard.active_bytes += match part.role {
                TensorRole::Embedding if !self.is_tied => 0,
                TensorRole::PerLayerTable | TensorRole::RouterTable => 0,
                TensorRole::Experts => {
                    let active = (bytes as f64 * active_experts) as u64;
                    shard.expert_bytes += bytes;
                    shard.active_expert_bytes += active;
                    active
                }
                _ => bytes,
            };
        }
    }
}

/// Each rank's piece of every division that was asked for.
struct Cuts<'a> {
    shares: &'a Shares,
    known: Vec<(Division, Vec<Cut>)>,
}

impl Cuts<'_> {
    fn of(&mut self, division: Division) -> &[Cut] {
        let known = self.known.iter().position(|(known, _)| *known == division);
        let idx = known.unwrap_or_else(|| {
            self.known.push((division, self.cut(division)));
            self.known.len() - 1
        });
        &self.known[idx].1
    }

    fn cut(&self, division: Division) -> Vec<Cut> {
        let heads = |counts, own: fn(HeadCut) -> Cut| {
            cut_heads(counts, self.shares).into_iter().map(own).collect()
        };
        match division {
            Division::Whole => {
                let whole = Cut { full: 1, own: 0..1, is_shared: true };
                vec![whole; self.shares.num_ranks()]
            }
            Division::Units { full, unit } => cut_dimension(full, unit, self.shares),
            Division::Heads(counts) => heads(counts, |cut| cut.heads),
            Division::KvHeads(counts) => heads(counts, |cut| cut.kv_heads),
        }
    }
}
