//! Keys and values for our own kernels: pages that this crate allocates and the attention primitive
//! writes in place. Forks share the pages until one side writes to them.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jackalope_kernels::{Elements, Float, Floats, KvPage, key_place};
use jackalope_mlx::Dtype;

use super::{BLOCK_TOKENS, KvShape, PoolShape};

/// The pages of one layer, written by the attention primitive on MLX's worker thread; `None` where
/// nothing is held.
#[derive(Clone, Debug, Default)]
pub(super) struct PageList(Arc<Mutex<Vec<Option<Arc<Page>>>>>);

impl PageList {
    /// Returns a list that shares the pages with these numbers.
    pub(super) fn fork(&self, numbers: Range<usize>) -> PageList {
        let held = self.locked();
        let shared = (0..numbers.end.min(held.len()))
            .map(|number| held[number].clone().filter(|_| numbers.start <= number));
        PageList(Arc::new(Mutex::new(shared.collect())))
    }

    /// Frees the pages with these numbers.
    pub(super) fn free(&self, numbers: Range<usize>) {
        let mut held = self.locked();
        let end = numbers.end.min(held.len());
        held[numbers.start.min(end)..end].fill(None);
    }

    /// Locks the pages. A poisoned lock means that a kernel panicked; its step has failed, and the
    /// cache with it.
    fn locked(&self) -> MutexGuard<'_, Vec<Option<Arc<Page>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle to one layer's pages that can be sent to the worker thread.
#[derive(Debug)]
pub struct LayerPages {
    pub(super) pages: PageList,
    /// Pages of what pools are computed from.
    pub(super) raw: PageList,
    /// Number of pages that the step needs.
    pub(super) num_pages: usize,
    pub(super) shape: KvShape,
    pub(super) dtype: Dtype,
}

impl LayerPages {
    /// Returns all pages, whose positions another layer of the step has written.
    pub fn held(&self) -> Vec<Arc<Page>> {
        readable(&self.pages.locked())
    }

    /// Rounds keys `[tokens, kv_heads, key_dim]`, values `[tokens, kv_heads, value_dim]`, if they are
    /// stored, and what an indexer keeps, `[tokens, index_dim]`, if it has no pools, into `positions`, and
    /// returns all pages.
    pub fn write(
        &self,
        positions: Range<usize>,
        keys: &[f32],
        values: &[f32],
        index: &[f32],
    ) -> Vec<Arc<Page>> {
        let KvShape { kv_heads, key_dim, value_dim, index_dim, pools } = self.shape;
        let index_dim = if pools.is_some() { 0 } else { index_dim };
        let widths = [kv_heads * key_dim, kv_heads * value_dim];
        let mut pages = self.pages.locked();
        if pages.len() < self.num_pages {
            pages.resize(self.num_pages, None);
        }
        for (idx, position) in positions.enumerate() {
            // A page that is shared with a fork is copied before the first write.
            let page = pages[position / BLOCK_TOKENS]
                .get_or_insert_with(|| Arc::new(Page::new(self.dtype, self.shape, BLOCK_TOKENS)));
            let page = Arc::make_mut(page);
            let (at, [key, value]) = (position % BLOCK_TOKENS, widths);
            page.write(at, &keys[idx * key..][..key], &values[idx * value..][..value]);
            page.index.store(at * index_dim, &index[idx * index_dim..][..index_dim]);
        }
        readable(&pages)
    }

    /// Rounds keys `[tokens, kv_heads, key_dim]` and what pools are computed from, `[tokens, index_dim]`, into
    /// `positions` of a layer with a window, and into each pool that ends there what `work` computes from the
    /// pages of these and its last position: a key, and what an indexer keeps.
    ///
    /// # Panics
    /// Panics if the layer has no pools.
    pub fn write_pooled(
        &self,
        positions: Range<usize>,
        keys: &[f32],
        index: &[f32],
        work: impl Fn(&[Arc<Page>], usize) -> [Vec<f32>; 2],
    ) -> PoolPages {
        let PoolShape { len, dim } = self.shape.pools.expect("the layer has pools");
        let KvShape { key_dim, .. } = self.shape;
        let window = self.raw(self.shape.kv_heads).write(positions.clone(), keys, &[], index);
        let index_dim = dim - key_dim;
        let shape = KvShape { index_dim, pools: None, ..self.shape };
        let per_page = BLOCK_TOKENS / len;
        let mut pages = self.pages.locked();
        if pages.len() < self.num_pages {
            pages.resize(self.num_pages, None);
        }
        for pool in positions.start / len..positions.end / len {
            let [key, index] = work(&window, (pool + 1) * len - 1);
            let page = pages[pool / per_page]
                .get_or_insert_with(|| Arc::new(Page::new(self.dtype, shape, per_page)));
            let page = Arc::make_mut(page);
            page.write(pool % per_page, &key, &[]);
            page.index.store(pool % per_page * index_dim, &index);
        }
        PoolPages { window, pools: readable(&pages) }
    }

    /// Returns the pages that hold what pools are computed from, and beside it the keys of `kv_heads` heads.
    fn raw(&self, kv_heads: usize) -> LayerPages {
        let shape = KvShape { kv_heads, pools: None, ..self.shape };
        LayerPages { pages: self.raw.clone(), raw: PageList::default(), shape, ..*self }
    }

    /// Rounds what pools are computed from, `[tokens, index_dim]`, into `positions`, whose keys the step has
    /// written, and into each pool that ends there what `work` computes from the pages of its positions and
    /// its last position. Returns all pages of keys.
    ///
    /// # Panics
    /// Panics if the layer has no pools.
    pub fn write_pools(
        &self,
        positions: Range<usize>,
        index: &[f32],
        work: impl Fn(&[Arc<Page>], usize) -> Vec<f32>,
    ) -> Vec<Arc<Page>> {
        let PoolShape { len, dim } = self.shape.pools.expect("the layer has pools");
        let raw = self.raw(0).write(positions.clone(), &[], &[], index);
        let mut pages = self.pages.locked();
        for pool in positions.start / len..positions.end / len {
            let last = (pool + 1) * len - 1;
            let page = pages[last / BLOCK_TOKENS].as_mut().expect("the step has written it");
            Arc::make_mut(page).index.store(pool_row(pool, len) * dim, &work(&raw, last));
        }
        readable(&pages)
    }
}

/// Pages of a layer with a window and pools.
#[derive(Debug)]
pub struct PoolPages {
    /// Keys, and what pools are computed from.
    pub window: Vec<Arc<Page>>,
    /// Keys of pools, and what an indexer keeps of them.
    pub pools: Vec<Arc<Page>>,
}

/// Returns the row of a pool of `len` positions in the page that holds its last position.
fn pool_row(pool: usize, len: usize) -> usize {
    let last = (pool + 1) * len - 1;
    pool - last / BLOCK_TOKENS * BLOCK_TOKENS / len
}

/// Returns the pages in the form that kernels take: in the place of one that is not held, which no
/// query sees, is another one.
fn readable(pages: &[Option<Arc<Page>>]) -> Vec<Arc<Page>> {
    let Some(other) = pages.iter().flatten().next() else { return Vec::new() };
    pages.iter().map(|page| Arc::clone(page.as_ref().unwrap_or(other))).collect()
}

/// The keys and values of some positions, or pools, in the layout of [`KvPage`].
#[derive(Clone, Debug)]
pub struct Page {
    keys: Floats,
    values: Floats,
    index: Floats,
    shape: KvShape,
    num_positions: usize,
}

impl Page {
    fn new(dtype: Dtype, shape: KvShape, num_positions: usize) -> Page {
        let zeros = |dim: usize| Floats::zeros(float(dtype), num_positions * dim);
        let of_pools = |pools: PoolShape| num_positions.div_ceil(pools.len) * pools.dim;
        let index_len = shape.pools.map_or(num_positions * shape.index_dim, of_pools);
        Page {
            keys: zeros(shape.kv_heads * shape.key_dim),
            values: zeros(shape.kv_heads * shape.value_dim),
            index: Floats::zeros(float(dtype), index_len),
            shape,
            num_positions,
        }
    }

    /// Rounds the keys `[kv_heads, key_dim]` and the values `[kv_heads, value_dim]` of one token into
    /// its position.
    fn write(&mut self, position: usize, keys: &[f32], values: &[f32]) {
        let KvShape { key_dim, value_dim, .. } = self.shape;
        for (head, keys) in keys.chunks_exact(key_dim).enumerate() {
            let place = key_place(self.num_positions, key_dim, head, position);
            self.keys.store_strided(place.start, place.step, keys);
            let values = &values[head * value_dim..(head + 1) * value_dim];
            self.values.store((head * self.num_positions + position) * value_dim, values);
        }
    }

    /// Returns the page in the form that the kernels take.
    pub fn view(&self) -> KvPage<'_> {
        let values = (0 < self.shape.value_dim).then(|| self.values.elements());
        KvPage { keys: self.keys.elements(), values }
    }

    /// Returns what an indexer keeps, `[positions, index_dim]`, or `[pools, dim]`.
    pub fn index(&self) -> Elements<'_> {
        self.index.elements()
    }

    /// Returns what an indexer keeps of a pool.
    ///
    /// # Panics
    /// Panics if the layer has no pools, or the pool is not whole.
    pub fn pool_of(pages: &[Arc<Page>], pool: usize) -> Vec<f32> {
        let PoolShape { len, dim } = pages[0].shape.pools.expect("the layer has pools");
        let page = &pages[((pool + 1) * len - 1) / BLOCK_TOKENS];
        let mut values = vec![0.0; dim];
        page.index.elements().load(pool_row(pool, len) * dim, &mut values);
        values
    }
}

/// Returns the element type of the kernels that corresponds to the type in which a model is
/// computed.
///
/// # Panics
/// Panics if it is not a float type.
#[track_caller]
pub fn float(dtype: Dtype) -> Float {
    match dtype {
        Dtype::F32 => Float::F32,
        Dtype::F16 => Float::F16,
        Dtype::Bf16 => Float::Bf16,
        other => panic!("a model is computed in floats, found {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 6;

    fn pages() -> LayerPages {
        LayerPages {
            pages: PageList::default(),
            raw: PageList::default(),
            num_pages: 2,
            shape: KvShape { kv_heads: 2, key_dim: 3, value_dim: 3, index_dim: 0, pools: None },
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
            let place = key_place(BLOCK_TOKENS, 3, head, position % BLOCK_TOKENS);
            [0, 1, 2].map(|idx| keys[place.start + idx * place.step])
        };
        [key(0), key(1)].concat()
    }

    #[test]
    fn every_row_is_where_its_position_says() {
        let layer = pages();
        layer.write(0..200, &rows(0..200, 0.0), &rows(0..200, 1e6), &[]);
        let held = layer.write(200..300, &rows(200..300, 0.0), &rows(200..300, 1e6), &[]);
        assert_eq!(held.len(), 2);
        for position in 0..300 {
            assert_eq!(keys_at(&held, position), rows(position..position + 1, 0.0));
        }
    }

    #[test]
    fn pools_are_held_where_their_last_positions_are() {
        // Pools of 3 reach from one page into the next one: 85 end in the first page.
        let shape = KvShape { kv_heads: 1, index_dim: 1, ..pages().shape };
        let pools = Some(PoolShape { len: 3, dim: 2 });
        let layer = LayerPages { shape: KvShape { pools, ..shape }, ..pages() };
        let sum = |raw: &[Arc<Page>], last: usize| {
            let mut sums = [0.0, last as f32];
            for position in last - 2..=last {
                let mut row = [0.0];
                let page = &raw[position / BLOCK_TOKENS].index;
                page.elements().load(position % BLOCK_TOKENS, &mut row);
                sums[0] += row[0];
            }
            sums.to_vec()
        };
        let write = |layer: &LayerPages, positions: Range<usize>, offset: f32| {
            let zeros = vec![0.0; positions.len() * 3];
            let rows: Vec<f32> = positions.clone().map(|it| it as f32 + offset).collect();
            layer.write(positions.clone(), &zeros, &zeros, &[]);
            layer.write_pools(positions, &rows, sum)
        };
        write(&layer, 0..100, 0.0);
        let held = write(&layer, 100..300, 0.0);
        for pool in 0..100 {
            let expected = [(9 * pool + 3) as f32, (3 * pool + 2) as f32];
            assert_eq!(Page::pool_of(&held, pool), expected);
        }
        // From where a sequence was cut, within a pool, others follow; what is before the pool is freed.
        layer.raw.free(0..1);
        let fork = LayerPages { pages: layer.pages.fork(0..2), raw: layer.raw.fork(1..2), ..layer };
        let forked = write(&fork, 260..270, 0.5);
        assert_eq!(Page::pool_of(&forked, 86), [258.0 + 259.0 + 260.5, 260.0]);
        assert_eq!(Page::pool_of(&forked, 87), [261.0 + 262.0 + 263.0 + 1.5, 263.0]);
        assert_eq!(Page::pool_of(&forked, 84), [759.0, 254.0]);
        assert_eq!(Page::pool_of(&held, 86), [777.0, 260.0]);
    }

    #[test]
    fn pools_stay_when_the_window_before_them_is_freed() {
        // Pools of 64 that are computed from two of them; keys of one head, and one element of an indexer.
        let pools = Some(PoolShape { len: 64, dim: 4 });
        let shape = KvShape { kv_heads: 1, value_dim: 0, index_dim: 1, pools, ..pages().shape };
        let layer = LayerPages { num_pages: 3, shape, ..pages() };
        let first_of = |raw: &[Arc<Page>], last: usize| {
            let mut row = [0.0];
            let first = (last + 1).saturating_sub(128);
            let page = &raw[first / BLOCK_TOKENS].index;
            page.elements().load(first % BLOCK_TOKENS, &mut row);
            [vec![row[0], last as f32, 0.5], vec![-row[0]]]
        };
        let write = |layer: &LayerPages, positions: Range<usize>| {
            let keys = vec![1.0; positions.len() * 3];
            let rows: Vec<f32> = positions.clone().map(|it| it as f32).collect();
            layer.write_pooled(positions, &keys, &rows, first_of)
        };
        write(&layer, 0..100);
        write(&layer, 100..500);
        layer.raw.free(0..1);
        let fork = LayerPages {
            pages: layer.pages.fork(0..2),
            raw: layer.raw.fork(1..2),
            num_pages: 3,
            shape,
            ..pages()
        };
        let held = write(&fork, 500..700);
        assert_eq!(held.window.len(), 3);
        for pool in 0..10 {
            let first = (pool * 64_usize).saturating_sub(64) as f32;
            let (page, at) = (&held.pools[pool / 4], pool % 4);
            let Floats::F32(keys) = &page.keys else { panic!("the pages are f32") };
            let place = key_place(4, 3, 0, at);
            let key = [0, 1, 2].map(|idx| keys[place.start + idx * place.step]);
            assert_eq!(key, [first, (pool * 64 + 63) as f32, 0.5], "pool {pool}");
            let mut index = [0.0];
            page.index().load(at, &mut index);
            assert_eq!(index, [-first], "pool {pool}");
        }
    }

    #[test]
    fn a_fork_shares_what_it_does_not_write_to() {
        let layer = pages();
        layer.write(0..300, &rows(0..300, 0.0), &rows(0..300, 0.0), &[]);
        let fork = LayerPages { pages: layer.pages.fork(0..2), ..pages() };
        let forked = fork.write(280..285, &rows(0..5, 0.5), &rows(0..5, 0.5), &[]);
        let held = layer.held();
        assert!(Arc::ptr_eq(&held[0], &forked[0]));
        assert!(!Arc::ptr_eq(&held[1], &forked[1]));
        assert_eq!(keys_at(&held, 282), rows(282..283, 0.0));
        assert_eq!(keys_at(&forked, 282), rows(2..3, 0.5));
        assert_eq!(keys_at(&forked, 270), rows(270..271, 0.0));
    }
}
