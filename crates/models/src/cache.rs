//! The keys and values of one sequence, kept between steps.
//!
//! For our own kernels, keys and values are stored in pages that this crate allocates, which the
//! attention primitive writes in place. A growing cache gets additional pages, and a fork shares
//! the pages until one side writes to them. For MLX's operations, they are arrays, updated in place
//! by donation.
//!
//! Lengths change when a step's graph is built, contents when it is evaluated. Graphs are evaluated
//! in the order in which they were built.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jackalope_kernels::{Floats, KvPage, key_place};
use jackalope_mlx::{Array, Dtype, Error};
use jackalope_protocol::KV_BLOCK_TOKENS;

use crate::layers::{dim, float};
use crate::parallel::Compute;

/// Number of tokens by which a cache grows.
const BLOCK_TOKENS: usize = KV_BLOCK_TOKENS as usize;

/// The properties that the caches of a model share.
#[derive(Clone, Debug)]
pub(crate) struct CacheShape {
    /// Range of the model's layers that are on this rank.
    pub(crate) layers: Range<usize>,
    /// Key and value heads of this rank.
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) dtype: Dtype,
    pub(crate) compute: Compute,
    /// Result of the last step's graph: once it is evaluated, all writes to all caches are done.
    pub(crate) last_step: Rc<RefCell<Option<Array>>>,
}

impl CacheShape {
    /// Returns the size of one token's keys and values in bytes.
    pub(crate) fn bytes_per_token(&self) -> usize {
        2 * self.layers.len() * self.kv_heads * self.head_dim * self.dtype.size_bytes()
    }
}

/// The cached keys and values of one sequence on this rank.
#[derive(Debug)]
pub struct SequenceCache {
    shape: CacheShape,
    layers: Vec<LayerCache>,
    len: usize,
    capacity: usize,
}

impl SequenceCache {
    /// Creates an empty cache.
    pub(crate) fn new(shape: &CacheShape) -> SequenceCache {
        let layer = |_| match shape.compute {
            Compute::Kernels(_) => LayerCache::Pages(Arc::default()),
            Compute::Stock => LayerCache::Arrays(None),
        };
        let layers = shape.layers.clone().map(layer).collect();
        SequenceCache { shape: shape.clone(), layers, len: 0, capacity: 0 }
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
        Ok(SequenceCache { shape: self.shape.clone(), layers, len: tokens, capacity })
    }

    /// Returns the arrays that must be evaluated so that this cache holds the positions that it
    /// counts.
    pub fn arrays(&self) -> Vec<Array> {
        let held = self.layers.iter().filter_map(|layer| match layer {
            LayerCache::Pages(_) => None,
            LayerCache::Arrays(arrays) => arrays.as_ref(),
        });
        let last_step = self.shape.last_step.borrow();
        held.flatten().chain(&*last_step).cloned().collect()
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
        match &self.layers[layer_idx - self.shape.layers.start] {
            LayerCache::Pages(pages) => {
                let CacheShape { kv_heads, head_dim, dtype, .. } = self.shape;
                let pages = Arc::clone(pages);
                LayerPages {
                    pages,
                    num_pages: self.capacity / BLOCK_TOKENS,
                    kv_heads,
                    head_dim,
                    dtype,
                }
            }
            LayerCache::Arrays(_) => panic!("this cache is not the kernels'"),
        }
    }

    /// Appends keys and values `[1, kv_heads, tokens, head_dim]` at `start` to one layer and
    /// returns all keys and values up to their end. For MLX's operations.
    ///
    /// # Panics
    /// Panics if the model computes with our kernels.
    pub(crate) fn append(
        &mut self,
        layer_idx: usize,
        start: usize,
        (keys, values): (&Array, &Array),
    ) -> (Array, Array) {
        let capacity = dim(self.capacity);
        let LayerCache::Arrays(held) = &mut self.layers[layer_idx - self.shape.layers.start] else {
            panic!("this cache is the kernels'");
        };
        let stop = dim(start) + keys.dim(2);
        let [old_keys, old_values] = held.take().map_or([None, None], |pair| pair.map(Some));
        let keys = updated(old_keys, keys, dim(start), capacity);
        let values = updated(old_values, values, dim(start), capacity);
        let views = (keys.slice_axis(2, 0, stop), values.slice_axis(2, 0, stop));
        *held = Some([keys, values]);
        views
    }
}

/// Returns `held`, grown to `capacity`, with `new` from `start` on. Takes `held` by value, so that
/// MLX writes into its memory if there is no other handle to it.
fn updated(held: Option<Array>, new: &Array, start: i32, capacity: i32) -> Array {
    let (kv_heads, len, head_dim) = (new.dim(1), new.dim(2), new.dim(3));
    let held_len = held.as_ref().map_or(0, |held| held.dim(2));
    let room = |len| Array::zeros(&[1, kv_heads, len, head_dim], new.dtype());
    let grown = match held {
        Some(held) if capacity <= held_len => held,
        Some(held) => Array::concatenate(&[&held, &room(capacity - held_len)], 2),
        None => room(capacity),
    };
    grown.slice_update(new, &[0, 0, start, 0], &[1, kv_heads, start + len, head_dim])
}

/// The keys and values of one layer.
#[derive(Debug)]
enum LayerCache {
    /// Pages, written by the attention primitive on MLX's worker thread.
    Pages(Arc<Mutex<Vec<Arc<Page>>>>),
    /// Keys and values as arrays `[1, kv_heads, capacity, head_dim]`; `None` before the first
    /// write.
    Arrays(Option<[Array; 2]>),
}

impl LayerCache {
    fn fork(&self, capacity: usize) -> LayerCache {
        match self {
            LayerCache::Pages(pages) => {
                let held = locked(pages);
                let num_pages = (capacity / BLOCK_TOKENS).min(held.len());
                LayerCache::Pages(Arc::new(Mutex::new(held[..num_pages].to_vec())))
            }
            LayerCache::Arrays(arrays) if capacity > 0 => {
                let prefix = |array: &Array| array.slice_axis(2, 0, dim(capacity)).contiguous();
                LayerCache::Arrays(arrays.as_ref().map(|pair| pair.each_ref().map(prefix)))
            }
            LayerCache::Arrays(_) => LayerCache::Arrays(None),
        }
    }
}

/// A handle to one layer's pages that can be sent to the worker thread.
#[derive(Debug)]
pub(crate) struct LayerPages {
    pages: Arc<Mutex<Vec<Arc<Page>>>>,
    /// Number of pages that the step needs.
    num_pages: usize,
    kv_heads: usize,
    head_dim: usize,
    dtype: Dtype,
}

impl LayerPages {
    /// Rounds keys and values `[tokens, kv_heads, head_dim]` into the positions from `start` on,
    /// and returns all pages.
    pub(crate) fn write(&self, start: usize, keys: &[f32], values: &[f32]) -> Vec<Arc<Page>> {
        let width = self.kv_heads * self.head_dim;
        let mut pages = locked(&self.pages);
        while pages.len() < self.num_pages {
            pages.push(Arc::new(Page::new(self.dtype, width, self.head_dim)));
        }
        let rows = keys.chunks_exact(width).zip(values.chunks_exact(width));
        for (position, (keys, values)) in (start..).zip(rows) {
            // A page that is shared with a fork is copied before the first write.
            let page = Arc::make_mut(&mut pages[position / BLOCK_TOKENS]);
            page.write(position % BLOCK_TOKENS, keys, values);
        }
        pages.clone()
    }
}

/// Locks the pages. A poisoned lock means that a kernel panicked; its step has failed, and the
/// cache with it.
fn locked(pages: &Mutex<Vec<Arc<Page>>>) -> MutexGuard<'_, Vec<Arc<Page>>> {
    pages.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The keys and values of [`BLOCK_TOKENS`] positions, in the layout of [`KvPage`].
#[derive(Clone, Debug)]
pub(crate) struct Page {
    keys: Floats,
    values: Floats,
    head_dim: usize,
}

impl Page {
    fn new(dtype: Dtype, width: usize, head_dim: usize) -> Page {
        let zeros = || Floats::zeros(float(dtype), BLOCK_TOKENS * width);
        Page { keys: zeros(), values: zeros(), head_dim }
    }

    /// Rounds the keys and values of one token, `[kv_heads, head_dim]`, into its position.
    fn write(&mut self, position: usize, keys: &[f32], values: &[f32]) {
        let head_dim = self.head_dim;
        let heads = keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim));
        for (head, (keys, values)) in heads.enumerate() {
            let place = key_place(BLOCK_TOKENS, head_dim, (head, position));
            self.keys.store_strided(place.start, place.step, keys);
            self.values.store((head * BLOCK_TOKENS + position) * head_dim, values);
        }
    }

    /// Returns the page in the form that the kernels take.
    pub(crate) fn view(&self) -> KvPage<'_> {
        KvPage { keys: self.keys.elements(), values: self.values.elements() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 6;

    fn pages() -> LayerPages {
        LayerPages {
            pages: Arc::default(),
            num_pages: 2,
            kv_heads: 2,
            head_dim: 3,
            dtype: Dtype::F32,
        }
    }

    fn rows(tokens: std::ops::Range<usize>, offset: f32) -> Vec<f32> {
        let value = |idx: usize| idx as f32 + offset;
        (tokens.start * WIDTH..tokens.end * WIDTH).map(value).collect()
    }

    /// Returns the keys of one position, head by head.
    fn keys_at(pages: &[Arc<Page>], position: usize) -> Vec<f32> {
        let Floats::F32(keys) = &pages[position / BLOCK_TOKENS].keys else {
            panic!("the pages are f32")
        };
        let key = |head| {
            let place = key_place(BLOCK_TOKENS, 3, (head, position % BLOCK_TOKENS));
            [0, 1, 2].map(|idx| keys[place.start + idx * place.step])
        };
        [key(0), key(1)].concat()
    }

    #[test]
    fn every_row_is_where_its_position_says() {
        let layer = pages();
        layer.write(0, &rows(0..200, 0.0), &rows(0..200, 1e6));
        let held = layer.write(200, &rows(200..300, 0.0), &rows(200..300, 1e6));
        assert_eq!(held.len(), 2);
        for position in 0..300 {
            assert_eq!(keys_at(&held, position), rows(position..position + 1, 0.0));
        }
    }

    #[test]
    fn a_fork_shares_what_it_does_not_write_to() {
        let layer = pages();
        layer.write(0, &rows(0..300, 0.0), &rows(0..300, 0.0));
        let LayerCache::Pages(forked) = LayerCache::Pages(Arc::clone(&layer.pages)).fork(512)
        else {
            panic!("a fork is of the same kind")
        };
        let fork = LayerPages { pages: forked, ..pages() };
        let forked = fork.write(280, &rows(0..5, 0.5), &rows(0..5, 0.5));
        let held = locked(&layer.pages).clone();
        assert!(Arc::ptr_eq(&held[0], &forked[0]));
        assert!(!Arc::ptr_eq(&held[1], &forked[1]));
        assert_eq!(keys_at(&held, 282), rows(282..283, 0.0));
        assert_eq!(keys_at(&forked, 282), rows(2..3, 0.5));
        assert_eq!(keys_at(&forked, 270), rows(270..271, 0.0));
    }
}
