//! What is kept of one sequence between steps: the keys and values of each layer.
//!
//! Lengths change when a step's graph is built, contents when it is evaluated. Graphs are evaluated
//! in the order in which they were built.

mod arrays;
mod pages;
mod slots;

use std::cell::RefCell;
use std::rc::Rc;

use jackalope_mlx::{Array, Dtype, Error};
use jackalope_protocol::{CacheCost, KV_BLOCK_TOKENS};

use self::pages::PageList;
use crate::parallel::Compute;

pub(crate) use self::arrays::KvArrays;
pub(crate) use self::pages::{LayerPages, Page};
pub(crate) use self::slots::{Decoding, Place, SlotAssignment, SlotPool};

/// Number of tokens by which a cache grows.
const BLOCK_TOKENS: usize = KV_BLOCK_TOKENS as usize;

/// The keys and values that a layer keeps of each position on this rank.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct KvShape {
    /// Number of key and value heads.
    pub(crate) kv_heads: usize,
    /// Width of a key.
    pub(crate) key_dim: usize,
    /// Width of a value.
    pub(crate) value_dim: usize,
}

impl KvShape {
    /// Returns the number of elements for one position.
    fn elements(self) -> usize {
        self.kv_heads * (self.key_dim + self.value_dim)
    }
}

/// What a layer keeps of a sequence on this rank.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LayerCacheShape {
    /// Keys and values of every position.
    Positions(KvShape),
}

impl LayerCacheShape {
    /// Returns the number of elements for one position.
    fn elements_per_token(&self) -> usize {
        let LayerCacheShape::Positions(shape) = self;
        shape.elements()
    }
}

/// The properties that the caches of a model share.
#[derive(Clone, Debug)]
pub(crate) struct CacheShape {
    /// Number of the model's first layer on this rank.
    pub(crate) first_layer: usize,
    /// Shape of each layer on this rank.
    pub(crate) layers: Rc<[LayerCacheShape]>,
    pub(crate) dtype: Dtype,
    pub(crate) compute: Compute,
    /// Where sequences that decode are, for MLX's operations.
    pub(crate) slots: Rc<RefCell<SlotPool>>,
    /// Result of the last step's graph: once it is evaluated, all writes to all caches are done.
    pub(crate) last_step: Rc<RefCell<Option<Array>>>,
}

impl CacheShape {
    /// Returns the memory that caches take.
    pub(crate) fn cost(&self) -> CacheCost {
        CacheCost { bytes_per_token: self.bytes_per_token() as u64, state_bytes: 0 }
    }

    /// Returns the size of one token's keys and values in bytes.
    pub(crate) fn bytes_per_token(&self) -> usize {
        let elements: usize = self.layers.iter().map(LayerCacheShape::elements_per_token).sum();
        elements * self.dtype.size_bytes()
    }
}

/// The cached keys and values of one sequence on this rank.
#[derive(Debug)]
pub struct SequenceCache {
    shape: CacheShape,
    layers: Vec<LayerCache>,
    /// Where keys and values are, for MLX's operations.
    place: Rc<RefCell<Place>>,
    len: usize,
    capacity: usize,
}

impl SequenceCache {
    /// Creates an empty cache.
    pub(crate) fn new(shape: &CacheShape) -> SequenceCache {
        let layer = |_: &LayerCacheShape| match shape.compute {
            Compute::Kernels(_) => LayerCache::Pages(PageList::default()),
            Compute::Stock => LayerCache::Placed,
        };
        let layers = shape.layers.iter().map(layer).collect();
        let place = Rc::new(RefCell::new(Place::Own(vec![None; shape.layers.len()])));
        SequenceCache { shape: shape.clone(), layers, place, len: 0, capacity: 0 }
    }

    /// Returns the number of positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the memory held, in bytes.
    pub fn bytes(&self) -> usize {
        self.capacity * self.shape.bytes_per_token()
    }

    /// Whether the cache can be cut or forked at `tokens`: always, unless it holds states.
    pub fn can_cut(&self, tokens: usize) -> bool {
        tokens <= self.len
    }

    /// Returns the lengths at which states are kept, in ascending order; none without states.
    pub fn kept(&self) -> &[usize] {
        &[]
    }

    /// Keeps the states at the present length. Does nothing without states.
    pub fn keep(&mut self) {}

    /// Gives up the states at a kept length. Does nothing without states.
    pub fn forget(&mut self, _tokens: usize) {}

    /// Drops all positions from `tokens` on. Their memory is kept for later positions.
    ///
    /// # Panics
    /// Panics if fewer than `tokens` positions are held.
    #[track_caller]
    pub fn truncate(&mut self, tokens: usize) {
        assert!(tokens <= self.len, "a cache of {} tokens cannot be cut to {tokens}", self.len);
        self.len = tokens;
    }

    /// Creates an independent cache with the first `tokens` positions.
    ///
    /// # Errors
    /// Fails if a step that wrote to this cache fails.
    ///
    /// # Panics
    /// Panics if fewer than `tokens` positions are held.
    #[track_caller]
    pub fn fork(&self, tokens: usize) -> Result<SequenceCache, Error> {
        assert!(tokens <= self.len, "a cache of {} tokens has no prefix of {tokens}", self.len);
        if let Some(last_step) = &*self.shape.last_step.borrow()
            && 0 < tokens
        {
            last_step.eval()?;
        }
        let capacity = tokens.next_multiple_of(BLOCK_TOKENS);
        let layers = self.layers.iter().map(|layer| layer.fork(capacity)).collect();
        let place = Rc::new(RefCell::new(self.fork_place(capacity)));
        Ok(SequenceCache { shape: self.shape.clone(), layers, place, len: tokens, capacity })
    }

    /// Returns copies of the first `capacity` positions, for MLX's operations.
    fn fork_place(&self, capacity: usize) -> Place {
        match &*self.place.borrow() {
            Place::Own(held) => {
                let fork = |held: &Option<KvArrays>| {
                    held.as_ref().filter(|_| 0 < capacity).map(|held| held.fork(capacity))
                };
                Place::Own(held.iter().map(fork).collect())
            }
            &Place::Slot { class, slot } if 0 < capacity => {
                Place::Own(self.shape.slots.borrow_mut().copy(class, slot, capacity))
            }
            Place::Slot { .. } => Place::Own(vec![None; self.shape.layers.len()]),
        }
    }

    /// Returns the arrays that must be evaluated so that this cache holds the positions that it
    /// counts.
    pub fn arrays(&self) -> Vec<Array> {
        let copies = self.shape.slots.borrow_mut().take_copies();
        copies.into_iter().chain(self.shape.last_step.borrow().clone()).collect()
    }

    /// Reserves memory for `num_tokens` more positions and counts them as held.
    pub(crate) fn extend(&mut self, num_tokens: usize) {
        self.len += num_tokens;
        self.capacity = self.capacity.max(self.len.next_multiple_of(BLOCK_TOKENS));
    }

    /// Returns one layer's pages, for the kernels.
    ///
    /// # Panics
    /// Panics if the model computes with MLX's operations.
    pub(crate) fn pages(&self, layer_idx: usize) -> LayerPages {
        let idx = layer_idx - self.shape.first_layer;
        let LayerCache::Pages(pages) = &self.layers[idx] else {
            panic!("this cache is not the kernels'")
        };
        let LayerCacheShape::Positions(shape) = self.shape.layers[idx];
        let num_pages = self.capacity / BLOCK_TOKENS;
        LayerPages { pages: pages.clone(), num_pages, shape, dtype: self.shape.dtype }
    }

    /// Appends keys `[1, kv_heads, tokens, key_dim]` and values `[1, kv_heads, tokens, value_dim]` at
    /// `start` to one layer and returns all keys and values up to their end. For MLX's operations,
    /// and sequences that are not in a slot.
    pub(crate) fn append(&mut self, layer_idx: usize, start: usize, new: &KvArrays) -> KvArrays {
        let Place::Own(held) = &mut *self.place.borrow_mut() else {
            panic!("a sequence leaves its slot before it gets several tokens")
        };
        let held = &mut held[layer_idx - self.shape.first_layer];
        let stop = start + usize::try_from(new.keys.dim(2)).expect("a length is not negative");
        let updated = KvArrays::updated(held.take(), new, start, self.capacity);
        held.insert(updated).positions(0, stop)
    }

    /// Returns the sequence as one that decodes in a slot.
    pub(crate) fn decoding(&self) -> Decoding {
        Decoding { place: Rc::clone(&self.place), len: self.len }
    }

    /// Returns the slots of the model's sequences.
    pub(crate) fn slots(&self) -> Rc<RefCell<SlotPool>> {
        Rc::clone(&self.shape.slots)
    }

    /// Returns the number of a layer among those of this rank.
    pub(crate) fn layer(&self, layer_idx: usize) -> usize {
        layer_idx - self.shape.first_layer
    }
}

/// The keys and values of one layer.
#[derive(Debug)]
enum LayerCache {
    /// For our kernels.
    Pages(PageList),
    /// For MLX's operations: they are at the sequence's [`Place`].
    Placed,
}

impl LayerCache {
    fn fork(&self, capacity: usize) -> LayerCache {
        match self {
            LayerCache::Pages(pages) => LayerCache::Pages(pages.fork(capacity)),
            LayerCache::Placed => LayerCache::Placed,
        }
    }
}
