//! What is kept of one sequence between steps: keys and values of each position, or a state.
//!
//! The cache of a sequence holds, for each layer of a rank, what its description (`LayerCacheShape`) says. Positions lie
//! in pages of a KV block each for our kernels, in arrays for MLX's operations: those of sequences that
//! decode side by side in slots, those of layers with windows in blocks. This crate knows no layers.
//!
//! Lengths change when a step's graph is built, contents when it is evaluated. Graphs are evaluated
//! in the order in which they were built.

mod arrays;
mod blocks;
mod chosen_rows;
mod pages;
mod pool_plan;
mod reach;
mod slots;
mod span;
mod stock_plan;
mod window_plan;
mod windows;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use jackalope_mlx::{Array, Dtype, Error};
use jackalope_protocol::{CacheCost, KV_BLOCK_TOKENS};
use jackalope_recurrence::{ForkAt, LayerStates, StateArrays, StateSlot, StateStep};

use self::pages::PageList;
use self::slots::KvLocation;
use self::windows::WindowBlocks;

pub use self::arrays::KvArrays;
pub use self::blocks::{BlockPool, BlockRows};
pub use self::chosen_rows::{Runs, SequenceRun};
pub use self::pages::{LayerPages, Page, PoolPages, float};
pub use self::pool_plan::{EndedPools, PoolKind};
pub use self::reach::Reach;
pub use self::slots::{Decoding, SlotAssignment, SlotMember, SlotPool, capacity_class};
pub use self::span::StepSpan;
pub use self::stock_plan::{DecodeGroup, GroupRows, StateGroup, StockPlan, VisibleKeys};
pub use self::window_plan::{SeenPositions, WindowGroup, WindowPlan, WindowPrompt, written_rows};

/// Number of tokens by which a cache grows.
const BLOCK_TOKENS: usize = KV_BLOCK_TOKENS as usize;

/// The keys and values that a layer keeps of each position on this rank.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct KvShape {
    /// Number of key and value heads.
    pub kv_heads: usize,
    /// Width of a key.
    pub key_dim: usize,
    /// Width of a value; 0 if values are parts of keys.
    pub value_dim: usize,
    /// Number of elements that an indexer keeps, for all heads; with pools, what these are computed from,
    /// until no pool needs them.
    pub index_dim: usize,
    /// Set if pools of positions are kept.
    pub pools: Option<PoolShape>,
}

/// What is kept of pools of positions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PoolShape {
    /// Number of positions of a pool.
    pub len: usize,
    /// Number of elements that are kept of a pool.
    pub dim: usize,
}

impl KvShape {
    /// Returns the number of elements for one position: of all positions, and of the last ones.
    fn elements(self) -> [usize; 2] {
        let heads = self.kv_heads * (self.key_dim + self.value_dim);
        match self.pools {
            Some(pools) => [heads + pools.dim.div_ceil(pools.len), self.index_dim],
            None => [heads + self.index_dim, 0],
        }
    }
}

/// What a layer keeps of a sequence on this rank.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LayerCacheShape {
    /// Keys and values of every position.
    Positions(KvShape),
    /// Keys and values of the last positions, which are all that a query sees beside pools.
    Window {
        /// Keys and values of a position.
        positions: KvShape,
        /// Number of positions that a query sees, its own included, or that a pool is computed from.
        window: usize,
    },
    /// A state in single precision.
    State {
        /// Number of elements on this rank.
        elements: usize,
    },
    /// Keys and values of every position, and a state in single precision.
    PositionsAndState {
        /// Keys and values of every position.
        positions: KvShape,
        /// Number of elements of the state on this rank.
        elements: usize,
    },
    /// No cache: the layer needs none, or reads the cache of another layer.
    None,
}

impl LayerCacheShape {
    /// Returns the keys and values of a position; `None` if the layer keeps no positions.
    pub fn positions(&self) -> Option<KvShape> {
        match *self {
            LayerCacheShape::Positions(positions)
            | LayerCacheShape::Window { positions, .. }
            | LayerCacheShape::PositionsAndState { positions, .. } => Some(positions),
            LayerCacheShape::State { .. } | LayerCacheShape::None => None,
        }
    }

    /// Returns the number of elements of the state on this rank; `None` if the layer keeps none.
    fn state(&self) -> Option<usize> {
        match *self {
            LayerCacheShape::State { elements }
            | LayerCacheShape::PositionsAndState { elements, .. } => Some(elements),
            LayerCacheShape::Positions(_)
            | LayerCacheShape::Window { .. }
            | LayerCacheShape::None => None,
        }
    }

    /// Returns the number of last positions of which more is kept than of the others, the newest one
    /// included: those that a query sees, or those of a pool. `None` if all positions are alike.
    fn window(&self) -> Option<usize> {
        match *self {
            LayerCacheShape::Window { window, .. } => Some(window),
            _ => Some(self.positions()?.pools?.len),
        }
    }

    /// Returns the number of elements for one position: of all positions, and of the last ones.
    fn elements(&self) -> [usize; 2] {
        let Some(positions) = self.positions() else { return [0; 2] };
        let [all, last] = positions.elements();
        let LayerCacheShape::Window { .. } = self else { return [all, last] };
        let pools = positions.pools.map_or(0, |pools| pools.dim.div_ceil(pools.len));
        [pools, all + last - pools]
    }

    /// Whether pages are freed, instead of those that have only what pools are computed from. In layers with
    /// a window and pools, pages have the pools.
    fn frees_pages(&self) -> bool {
        matches!(self, LayerCacheShape::Window { positions, .. } if positions.pools.is_none())
    }

    /// Returns the size of the state in bytes.
    fn state_bytes(&self) -> usize {
        self.state().unwrap_or(0) * Dtype::F32.size_bytes()
    }
}

/// The properties that the caches of a model share.
#[derive(Clone, Debug)]
pub struct CacheShape {
    /// Number of mixers in the layers before this rank's. Each mixer counts as a layer here.
    pub first_layer: usize,
    /// Shape of each mixer's cache on this rank.
    pub layers: Rc<[LayerCacheShape]>,
    /// Element type of keys and values.
    pub dtype: Dtype,
    /// Whether positions lie in pages, for our kernels; otherwise in arrays, for MLX's operations.
    pub has_pages: bool,
    /// Slots of the sequences that decode, for MLX's operations.
    pub slots: Rc<RefCell<SlotPool>>,
    /// Result of the last step's graph: once it is evaluated, all writes to all caches are done.
    pub last_step: Rc<RefCell<Option<Array>>>,
}

impl CacheShape {
    /// Returns the memory that caches take.
    pub fn cost(&self) -> CacheCost {
        let state_bytes = self.state_bytes() as u64;
        CacheCost {
            bytes_per_token: self.bytes_per_token(false) as u64,
            window_bytes_per_token: self.bytes_per_token(true) as u64,
            window_tokens: u32::try_from(self.window_tokens()).expect("config.json bounds it"),
            state_bytes,
        }
    }

    /// Returns the number of positions that a query sees at most in layers with windows, its own
    /// included; 0 without such layers.
    fn window_tokens(&self) -> usize {
        self.layers.iter().filter_map(LayerCacheShape::window).max().unwrap_or(0)
    }

    /// Whether there are layers with states, even if this rank has no part of them.
    pub fn has_states(&self) -> bool {
        self.layers.iter().any(|layer| layer.state().is_some())
    }

    /// Returns the size of the states of one length in bytes.
    fn state_bytes(&self) -> usize {
        self.layers.iter().map(LayerCacheShape::state_bytes).sum()
    }

    /// Returns the size in bytes of what is kept of one token: of all tokens, or of the last ones only.
    fn bytes_per_token(&self, of_window: bool) -> usize {
        let elements = self.layers.iter().map(|layer| layer.elements()[usize::from(of_window)]);
        elements.sum::<usize>() * self.dtype.size_bytes()
    }
}

/// The cached keys and values of one sequence on this rank.
#[derive(Debug)]
pub struct SequenceCache {
    shape: CacheShape,
    layers: Vec<LayerCache>,
    /// Place of keys and values, for MLX's operations.
    place: Rc<RefCell<KvLocation>>,
    /// Where the present states are, for MLX's operations.
    state_slot: StateSlot,
    len: usize,
    capacity: usize,
    /// Blocks of layers with windows.
    windows: WindowBlocks,
    /// Lengths at which the layers keep their states, in ascending order.
    kept: Vec<usize>,
}

impl SequenceCache {
    /// Creates an empty cache.
    pub fn new(shape: &CacheShape) -> SequenceCache {
        let has_pages = shape.has_pages;
        let layer = |layer: &LayerCacheShape| LayerCache {
            pages: layer.positions().filter(|_| has_pages).map(|_| PageList::default()),
            raw: PageList::default(),
            states: layer.state().map(|_| LayerStates::default()),
        };
        let layers = shape.layers.iter().map(layer).collect();
        let num_arrays = shape.slots.borrow().num_arrays();
        let place = Rc::new(RefCell::new(KvLocation::Own(vec![None; num_arrays])));
        let (shape, kept) = (shape.clone(), Vec::new());
        let state_slot = StateSlot::default();
        let windows = WindowBlocks::new(shape.window_tokens());
        SequenceCache { shape, layers, place, state_slot, len: 0, capacity: 0, windows, kept }
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
        let has_own_state = 0 < self.len && !self.kept.contains(&self.len);
        let num_states = self.kept.len() + usize::from(has_own_state);
        let num_freed = self.windows.num_freed() * BLOCK_TOKENS;
        self.capacity * self.shape.bytes_per_token(false)
            + (self.capacity - num_freed) * self.shape.bytes_per_token(true)
            + num_states * self.shape.state_bytes()
    }

    /// Whether the cache can be cut or forked at `tokens`: at every length, unless it holds states;
    /// then at its own length, at the kept ones and at 0. Layers with windows must hold what the next
    /// position sees.
    pub fn can_cut(&self, tokens: usize) -> bool {
        let is_known = tokens == 0 || tokens == self.len || self.kept.contains(&tokens);
        let is_held = self.windows.holds_window(tokens);
        tokens <= self.len && is_held && (is_known || !self.shape.has_states())
    }

    /// Returns the lengths at which states are kept, in ascending order; none without states.
    pub fn kept(&self) -> &[usize] {
        &self.kept
    }

    /// Keeps the states at the present length. Does nothing without states.
    pub fn keep(&mut self) {
        if self.shape.has_states() && 0 < self.len && !self.kept.contains(&self.len) {
            self.kept.push(self.len);
            match self.copied_states() {
                Some(copies) => {
                    self.states_with(copies).for_each(|(it, copy)| it.keep_arrays(copy))
                }
                None => self.states().for_each(LayerStates::keep),
            }
        }
    }

    /// Gives up the states at a kept length. Does nothing if none are kept there.
    pub fn forget(&mut self, tokens: usize) {
        if let Some(idx) = self.kept.iter().position(|kept| *kept == tokens) {
            self.kept.remove(idx);
            self.states().for_each(|states| states.forget(idx));
        }
    }

    /// Frees blocks of layers with windows, which no later row reads.
    ///
    /// # Errors
    /// Fails if a step that wrote to this cache fails.
    pub fn free_windows(&mut self, blocks: Range<usize>) -> Result<(), Error> {
        if !self.windows.is_used() {
            return Ok(());
        }
        // Kernels write to pages when the graph is evaluated, which was built before.
        if let Some(last_step) = &*self.shape.last_step.borrow()
            && self.shape.has_pages
        {
            last_step.eval()?;
        }
        let blocks = blocks.start..blocks.end.min(self.capacity / BLOCK_TOKENS);
        for (layer, shape) in self.layers.iter().zip(&*self.shape.layers) {
            let pages = if shape.frees_pages() { layer.pages.as_ref() } else { Some(&layer.raw) };
            pages.into_iter().for_each(|pages| pages.free(blocks.clone()));
        }
        self.windows.free(blocks);
        Ok(())
    }

    /// Drops all positions from `tokens` on, and all states of longer lengths. The memory of the
    /// positions is kept for later ones.
    ///
    /// # Panics
    /// Panics if the cache cannot be cut there; see [`SequenceCache::can_cut`].
    #[track_caller]
    pub fn truncate(&mut self, tokens: usize) {
        assert!(self.can_cut(tokens), "{} cannot be cut to {tokens}", self.describe());
        if tokens == self.len {
            return;
        }
        let num_kept = self.kept.partition_point(|kept| *kept <= tokens);
        self.kept.truncate(num_kept);
        // What is left of the kept lengths ends with this one, unless this one is 0.
        self.states().for_each(|states| states.cut(num_kept));
        self.state_slot.set(None);
        self.len = tokens;
    }

    /// Creates an independent cache with the first `tokens` positions, in layers with windows without
    /// the blocks before `window_start`. It keeps this length if this cache does.
    ///
    /// # Errors
    /// Fails if a step that wrote to this cache fails.
    ///
    /// # Panics
    /// Panics if the cache cannot be forked there; see [`SequenceCache::can_cut`].
    #[track_caller]
    pub fn fork(&self, tokens: usize, window_start: usize) -> Result<SequenceCache, Error> {
        assert!(self.can_cut(tokens), "{} cannot be forked at {tokens}", self.describe());
        if let Some(last_step) = &*self.shape.last_step.borrow()
            && 0 < tokens
        {
            last_step.eval()?;
        }
        let kept_idx = self.kept.iter().position(|kept| *kept == tokens);
        let at = match kept_idx {
            Some(idx) => ForkAt::Kept(idx),
            None if tokens == 0 => ForkAt::Start,
            None => ForkAt::End,
        };
        let capacity = tokens.next_multiple_of(BLOCK_TOKENS);
        let window_start = window_start.min(capacity / BLOCK_TOKENS);
        let windows = self.windows.fork(window_start, capacity / BLOCK_TOKENS);
        let layers = self.layers.iter().zip(&*self.shape.layers).map(|(layer, shape)| {
            let first = if shape.frees_pages() { window_start } else { 0 };
            layer.fork([first, window_start], capacity / BLOCK_TOKENS, at)
        });
        let layers = layers.collect();
        let states = match at {
            ForkAt::End => self.copied_states(),
            ForkAt::Start | ForkAt::Kept(_) => None,
        };
        let kept = kept_idx.map(|_| tokens).into_iter().collect();
        let place = Rc::new(RefCell::new(self.fork_place(capacity)));
        let shape = self.shape.clone();
        let state_slot = StateSlot::default();
        let mut fork = SequenceCache {
            shape,
            layers,
            place,
            state_slot,
            len: tokens,
            capacity,
            windows,
            kept,
        };
        if let Some(states) = states {
            fork.set_states(states);
        }
        Ok(fork)
    }

    /// Returns copies of the present states, one for each layer, if they are in a slot.
    fn copied_states(&self) -> Option<Vec<Option<StateArrays>>> {
        let slot = self.state_slot.get()?;
        Some(self.shape.slots.borrow_mut().states.copy(slot))
    }

    /// Returns the layers' states, each with its layer's part of `copies`.
    fn states_with(
        &mut self,
        copies: Vec<Option<StateArrays>>,
    ) -> impl Iterator<Item = (&mut LayerStates, Option<StateArrays>)> {
        let layers = self.layers.iter_mut().zip(copies);
        layers.filter_map(|(layer, copy)| Some((layer.states.as_mut()?, copy)))
    }

    fn set_states(&mut self, arrays: Vec<Option<StateArrays>>) {
        for (states, arrays) in self.states_with(arrays) {
            if let Some(arrays) = arrays {
                states.set_arrays(arrays);
            }
        }
    }

    /// Moves the present states out of their slot, if they are in one.
    pub fn leave_state_slot(&mut self) {
        if let Some(states) = self.copied_states() {
            self.state_slot.set(None);
            self.set_states(states);
        }
    }

    /// Returns the slot of the present states.
    pub fn state_slot(&self) -> StateSlot {
        Rc::clone(&self.state_slot)
    }

    /// Takes one layer's state, for MLX's operations; `None` at length 0.
    pub fn take_state_arrays(&mut self, layer_idx: usize) -> Option<StateArrays> {
        self.state(layer_idx).take_arrays()
    }

    /// Returns copies of the first `capacity` positions, for MLX's operations.
    fn fork_place(&self, capacity: usize) -> KvLocation {
        match &*self.place.borrow() {
            KvLocation::Own(held) => {
                let slots = self.shape.slots.borrow();
                let fork = |(number, held): (usize, &Option<KvArrays>)| {
                    let held = held.as_ref().filter(|_| 0 < capacity)?;
                    Some(held.fork(slots.num_rows(number, capacity)))
                };
                KvLocation::Own(held.iter().enumerate().map(fork).collect())
            }
            &KvLocation::Slot { class, slot } if 0 < capacity => {
                KvLocation::Own(self.shape.slots.borrow_mut().copy(class, slot, capacity))
            }
            KvLocation::Slot { .. } => {
                KvLocation::Own(vec![None; self.shape.slots.borrow().num_arrays()])
            }
        }
    }

    fn describe(&self) -> String {
        let SequenceCache { len, kept, .. } = self;
        if self.shape.has_states() {
            format!("a cache of {len} tokens that keeps states at {kept:?}")
        } else {
            format!("a cache of {len} tokens")
        }
    }

    fn states(&mut self) -> impl Iterator<Item = &mut LayerStates> {
        self.layers.iter_mut().filter_map(|layer| layer.states.as_mut())
    }

    fn state(&mut self, layer_idx: usize) -> &mut LayerStates {
        let layer = &mut self.layers[layer_idx - self.shape.first_layer];
        layer.states.as_mut().expect("this layer keeps a state")
    }

    /// Returns one layer's state for the next rows of the sequence, for the kernels.
    ///
    /// # Panics
    /// Panics if the layer keeps positions, or the model computes with MLX's operations.
    pub fn state_step(&mut self, layer_idx: usize) -> StateStep {
        self.state(layer_idx).step()
    }

    /// Returns one layer's state, for MLX's operations; `None` at length 0.
    ///
    /// # Panics
    /// Panics if the layer keeps positions, or the model computes with our kernels.
    pub fn state_arrays(&mut self, layer_idx: usize) -> Option<StateArrays> {
        self.state(layer_idx).arrays().cloned()
    }

    /// Replaces one layer's state, for MLX's operations.
    ///
    /// # Panics
    /// Panics if the layer keeps positions.
    pub fn set_state_arrays(&mut self, layer_idx: usize, arrays: StateArrays) {
        self.state(layer_idx).set_arrays(arrays);
    }

    /// Returns the arrays that must be evaluated so that this cache holds the positions that it
    /// counts.
    pub fn arrays(&self) -> Vec<Array> {
        let states = self.layers.iter().filter_map(|layer| layer.states.as_ref()?.arrays());
        let states = states.flat_map(|held| [&held.inputs].into_iter().chain(&held.state).cloned());
        let mut slots = self.shape.slots.borrow_mut();
        let written = slots.take_copies().into_iter().chain(slots.states.take_written());
        let last_step = self.shape.last_step.borrow().clone();
        states.chain(written).chain(last_step).collect()
    }

    /// Reserves memory for `num_tokens` more positions and counts them as held.
    pub fn extend(&mut self, num_tokens: usize) {
        let (start, end) = (self.len, self.len + num_tokens);
        self.windows.extend(start, end);
        if !self.shape.has_pages && self.windows.is_used() {
            self.windows.own(start, end, &mut self.shape.slots.borrow_mut().blocks);
        }
        self.len = end;
        self.capacity = self.capacity.max(self.len.next_multiple_of(BLOCK_TOKENS));
    }

    /// Returns one layer's pages, for the kernels.
    ///
    /// # Panics
    /// Panics if the model computes with MLX's operations.
    pub fn pages(&self, layer_idx: usize) -> LayerPages {
        let idx = layer_idx - self.shape.first_layer;
        let LayerCache { pages, raw, .. } = &self.layers[idx];
        let (pages, raw) = (pages.clone().expect("this cache is the kernels'"), raw.clone());
        let shape = self.shape.layers[idx].positions().expect("this layer keeps positions");
        let num_pages = self.capacity / BLOCK_TOKENS;
        LayerPages { pages, raw, num_pages, shape, dtype: self.shape.dtype }
    }

    /// Appends keys `[1, kv_heads, tokens, key_dim]` and values `[1, kv_heads, tokens, value_dim]`, if
    /// they are stored, at `start` to one layer and returns all keys and values up to their end. For MLX's operations,
    /// and sequences that are not in a slot.
    pub fn append(&mut self, layer_idx: usize, start: usize, new: &KvArrays) -> KvArrays {
        self.append_rows(self.layer(layer_idx), start, new)
    }

    /// Appends what a layer keeps of pools, `[pools, 1, 1, dim]`, from the number `first` on. For MLX's
    /// operations, and sequences that are not in a slot.
    pub fn append_pools(&mut self, layer_idx: usize, first: usize, new: &KvArrays) {
        let number = self.shape.slots.borrow().pools(self.layer(layer_idx));
        let new = new.map(|pools| pools.transpose(&[2, 1, 0, 3]));
        let pools = self.append_rows(number, first, &new);
        self.shape.slots.borrow_mut().note_written([pools.keys]);
    }

    fn append_rows(&mut self, number: usize, start: usize, new: &KvArrays) -> KvArrays {
        let KvLocation::Own(held) = &mut *self.place.borrow_mut() else {
            panic!("a sequence leaves its slot before it gets several tokens")
        };
        let held = &mut held[number];
        let stop = start + usize::try_from(new.keys.dim(2)).expect("a length is not negative");
        let num_rows = self.shape.slots.borrow().num_rows(number, self.capacity);
        let updated = KvArrays::updated(held.take(), new, start, num_rows);
        let updated = held.insert(updated);
        self.shape.slots.borrow_mut().note_written(updated.index.clone());
        updated.rows(0, stop)
    }

    /// Returns one layer's keys and values of the first `len` positions. For MLX's operations, and
    /// sequences that are not in a slot.
    ///
    /// # Panics
    /// Panics if the layer keeps none.
    pub fn held(&self, layer_idx: usize, len: usize) -> KvArrays {
        self.held_rows(self.layer(layer_idx), len)
    }

    /// As [`SequenceCache::held`], for the first `len` pools.
    pub fn held_pools(&self, layer_idx: usize, len: usize) -> KvArrays {
        let number = self.shape.slots.borrow().pools(self.layer(layer_idx));
        self.held_rows(number, len)
    }

    fn held_rows(&self, number: usize, len: usize) -> KvArrays {
        let KvLocation::Own(held) = &*self.place.borrow() else {
            panic!("a sequence leaves its slot before it gets several tokens")
        };
        let held = held[number].as_ref();
        held.expect("a layer keeps keys before another one reads them").rows(0, len)
    }

    /// Appends where held positions are in the blocks of layers with windows to `rows`. For MLX's operations.
    ///
    /// # Panics
    /// Panics if a position is not held.
    pub fn append_block_rows(&self, positions: Range<usize>, rows: &mut Vec<i32>) {
        self.windows.append_rows(positions, rows);
    }

    /// Returns the sequence as one that decodes in a slot.
    pub fn decoding(&self) -> Decoding {
        Decoding::new(Rc::clone(&self.place), self.len)
    }

    /// Whether there are layers with states.
    pub fn has_states(&self) -> bool {
        self.shape.has_states()
    }

    /// Returns the slots of the model's sequences.
    pub fn slots(&self) -> Rc<RefCell<SlotPool>> {
        Rc::clone(&self.shape.slots)
    }

    /// Returns the number of a layer among those of this rank.
    pub fn layer(&self, layer_idx: usize) -> usize {
        layer_idx - self.shape.first_layer
    }
}

/// Cache of one layer.
#[derive(Debug)]
struct LayerCache {
    /// Keys and values for our kernels. For MLX's operations they are at the sequence's
    /// [`KvLocation`].
    pages: Option<PageList>,
    /// What is kept of positions until no pool and no window needs them, for our kernels.
    raw: PageList,
    /// State, for our kernels or for MLX's operations.
    states: Option<LayerStates>,
}

impl LayerCache {
    /// Copies the blocks up to `end`, from the first one of `pages` and the first one of `raw` on.
    fn fork(&self, [first, first_raw]: [usize; 2], end: usize, at: ForkAt) -> LayerCache {
        LayerCache {
            pages: self.pages.as_ref().map(|pages| pages.fork(first..end)),
            raw: self.raw.fork(first_raw..end),
            states: self.states.as_ref().map(|states| states.fork(at)),
        }
    }
}
