//! A loaded model, the interface to the runner.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use jackalope_mlx::{Array, Dtype};
use jackalope_protocol::{CacheCost, TokenId, UnitRange};

use crate::arch::{self, Dimensions, Network};
use crate::split::Cut;
use crate::step::{Span, Step, StepTokens};
use jackalope_cache::{CacheShape, LayerCacheShape, SequenceCache, SlotPool};
use jackalope_parallel::{Compute, Parallel};
use jackalope_weights::LoadError;
use jackalope_weights::checkpoint::Checkpoint;
use jackalope_weights::{LoadCounters, LoadProgress};

/// The rows of one step.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    /// Tokens of all sequences, concatenated.
    pub tokens: &'a [TokenId],
    /// Part of each sequence in `tokens`, in order and without gaps, one for each cache. Its
    /// positions follow those already in the cache.
    pub rows: Vec<Span>,
    /// Indices into `tokens` of the rows whose output is needed, for logits or for an embedding.
    pub logits_at: Vec<usize>,
}

/// Facts about this rank's part of a model.
#[derive(Clone, Debug)]
pub struct ModelFacts {
    /// `model_type` of the checkpoint.
    pub architecture: String,
    /// Number of decoder layers of the whole model.
    pub num_layers: u32,
    /// Layers of this rank.
    pub layers: UnitRange,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Size of the vocabulary.
    pub vocab_size: u32,
    /// Maximum length of a sequence that the model was trained for, in tokens.
    pub context_tokens: u32,
    /// Query heads of this rank.
    pub heads: UnitRange,
    /// Key and value heads of this rank.
    pub kv_heads: UnitRange,
    /// Inner dimensions of the MLP on this rank.
    pub mlp: UnitRange,
    /// Vocabulary rows of this rank.
    pub vocab: UnitRange,
    /// Memory that caches take on this rank.
    pub cache_cost: CacheCost,
    /// Size of the weights in this rank's memory, in bytes.
    pub weights_bytes: u64,
    /// Number of bytes of tensor data that this rank read.
    pub bytes_read: u64,
    /// Part of `bytes_read` that other ranks read too.
    pub replicated_bytes: u64,
    /// Type that the model is computed in.
    pub dtype: Dtype,
}

/// A model, or this rank's part of it.
#[derive(Debug)]
pub struct Model {
    network: Box<dyn Network>,
    facts: ModelFacts,
    cache_shape: CacheShape,
    has_last_layer: bool,
}

impl Model {
    /// Loads this rank's part of the checkpoint in `dir`.
    ///
    /// # Errors
    /// Fails if the checkpoint is incomplete, damaged or unsupported, or memory runs out.
    pub fn load(
        dir: &Path,
        parallel: &Parallel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Model, LoadError> {
        Model::from_checkpoint(&Checkpoint::open(dir)?, parallel, progress)
    }

    /// Like [`Model::load`], for a checkpoint that is already open.
    ///
    /// # Errors
    /// As for [`Model::load`].
    pub fn from_checkpoint(
        checkpoint: &Checkpoint,
        parallel: &Parallel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Model, LoadError> {
        let (network, counters) = arch::load(checkpoint, parallel, progress)?;
        let dimensions = network.dimensions();
        let layers: Rc<[LayerCacheShape]> = network.cache_shapes().into();
        let slots = SlotPool::new(&layers, counters.dtype);
        let cache_shape = CacheShape {
            first_layer: checkpoint.spec.num_caches(0..dimensions.layers.start),
            layers,
            slots: Rc::new(RefCell::new(slots)),
            dtype: counters.dtype,
            has_pages: matches!(parallel.compute(), Compute::Kernels(_)),
            last_step: Rc::default(),
        };
        let cache_cost = cache_shape.cost();
        let facts = facts(&checkpoint.spec.model_type, &dimensions, &counters, cache_cost);
        let has_last_layer = parallel.has_last_layer();
        Ok(Model { network, facts, cache_shape, has_last_layer })
    }

    /// Returns facts about this rank's part of the model.
    pub fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    /// Whether this rank has the last layer and so computes logits and states; otherwise another
    /// rank of the pipeline does.
    pub fn has_last_layer(&self) -> bool {
        self.has_last_layer
    }

    /// Whether this rank holds layers with a state, whose caches can be cut only at lengths that
    /// are kept.
    pub fn has_states(&self) -> bool {
        self.facts.cache_cost.has_states()
    }

    /// Whether MLX's own operations compute the layers, on whatever device, instead of our kernels.
    pub fn computes_with_mlx(&self) -> bool {
        !self.cache_shape.has_pages
    }

    /// Creates an empty cache for one sequence.
    pub fn new_cache(&self) -> SequenceCache {
        SequenceCache::new(&self.cache_shape)
    }

    /// Builds the graph of one step and counts its tokens as held by `caches`, one for each span of
    /// the batch. On ranks that have the last layer, the result is the last layer's output
    /// `[logits_at, hidden]` for [`logits`](Model::logits), the same on each of them. On the other
    /// ranks it is the activations `[tokens, hidden]`, which are sent on when the result is
    /// evaluated.
    ///
    /// Evaluate the result together with the caches' [`SequenceCache::arrays`], because the result
    /// of a step without logits does not depend on the step's computation. If the evaluation fails,
    /// the caches cannot be used any more.
    ///
    /// # Panics
    /// Panics if spans, caches and tokens do not fit together, or there are no spans.
    #[track_caller]
    pub fn hidden(&self, batch: &Batch<'_>, caches: &mut [&mut SequenceCache]) -> Array {
        self.hidden_of(batch, None, caches)
    }

    /// Builds [`hidden`](Model::hidden) of tokens that the device computes: `tokens`, u32 `[tokens]`,
    /// takes the place of [`Batch::tokens`]; only the length of the latter is used.
    ///
    /// # Panics
    /// Panics like [`hidden`](Model::hidden), and if the model does not compute with MLX's operations.
    #[track_caller]
    pub fn hidden_of_device_tokens(
        &self,
        batch: &Batch<'_>,
        tokens: &Array,
        caches: &mut [&mut SequenceCache],
    ) -> Array {
        assert!(self.computes_with_mlx(), "our kernels need tokens that the host knows");
        self.hidden_of(batch, Some(tokens), caches)
    }

    #[track_caller]
    fn hidden_of(
        &self,
        batch: &Batch<'_>,
        device_tokens: Option<&Array>,
        caches: &mut [&mut SequenceCache],
    ) -> Array {
        assert!(!batch.rows.is_empty(), "a step has rows");
        let mut step = Step::new(&batch.rows, caches);
        let num_rows = step.spans.last().map_or(0, |span| span.rows.end);
        assert_eq!(num_rows, batch.tokens.len(), "every token belongs to a span");
        let tokens = StepTokens { host: batch.tokens, device: device_tokens };
        match &batch.logits_at[..] {
            // All ranks compute one row of the last layer, so that none waits for a sum.
            [] => step.need(&[num_rows - 1]),
            rows => step.need(rows),
        }
        let h = self.network.forward(tokens, &mut step);
        let unread = self.cache_shape.slots.borrow_mut().take_unread();
        let h = match &unread.iter().collect::<Vec<_>>()[..] {
            [] => h,
            unread => h.after(unread),
        };
        let is_unneeded = self.has_last_layer && batch.logits_at.is_empty();
        let result =
            if is_unneeded { Array::zeros(&[0, h.dim(-1)], Dtype::F32) } else { h.clone() };
        self.cache_shape.last_step.replace(Some(h));
        result
    }

    /// Returns the f32 logits `[rows, vocab]` of some rows of [`hidden`](Model::hidden), complete
    /// on every rank; not evaluated yet.
    pub fn logits(&self, hidden: &Array) -> Array {
        self.network.head(&self.network.norm(hidden))
    }

    /// Returns the final hidden states `[rows, hidden]` in f32 of some rows of
    /// [`hidden`](Model::hidden): after the last norm, before the head. Not evaluated yet; needs no
    /// collective.
    pub fn states(&self, hidden: &Array) -> Array {
        self.network.norm(hidden).astype(Dtype::F32)
    }

    /// Builds [`hidden`](Model::hidden) and [`logits`](Model::logits) in one graph, with the result
    /// `[logits_at, vocab]`.
    ///
    /// # Panics
    /// Panics like [`hidden`](Model::hidden).
    #[track_caller]
    pub fn forward(&self, batch: &Batch<'_>, caches: &mut [&mut SequenceCache]) -> Array {
        let hidden = self.hidden(batch, caches);
        if batch.logits_at.is_empty() {
            let vocab = i32::try_from(self.facts.vocab_size).expect("bounded by config.json");
            return Array::zeros(&[0, vocab], Dtype::F32);
        }
        self.logits(&hidden)
    }
}

fn facts(
    architecture: &str,
    dimensions: &Dimensions,
    counters: &LoadCounters,
    cache_cost: CacheCost,
) -> ModelFacts {
    let number = |len: usize| u32::try_from(len).expect("bounded by config.json");
    let range = |cut: &Cut| UnitRange { start: number(cut.own.start), end: number(cut.own.end) };
    ModelFacts {
        architecture: architecture.to_owned(),
        num_layers: number(dimensions.num_layers),
        layers: UnitRange {
            start: number(dimensions.layers.start),
            end: number(dimensions.layers.end),
        },
        hidden_size: number(dimensions.hidden_size),
        vocab_size: number(dimensions.vocab.full),
        context_tokens: dimensions.context_tokens,
        heads: range(&dimensions.heads.cut.heads),
        kv_heads: range(&dimensions.heads.cut.kv_heads),
        mlp: range(&dimensions.mlp),
        vocab: range(&dimensions.vocab),
        cache_cost,
        weights_bytes: counters.weights_bytes,
        bytes_read: counters.bytes_read,
        replicated_bytes: counters.replicated_bytes,
        dtype: counters.dtype,
    }
}
