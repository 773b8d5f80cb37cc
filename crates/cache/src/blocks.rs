//! Blocks of layers with windows, for MLX's operations.
//!
//! The blocks of all sequences lie in one array per layer: one scatter writes the new positions of a step,
//! and one gather reads what each sequence sees. A block has the same number in all layers. Forks share
//! blocks; a shared one is copied before it is written.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use jackalope_mlx::{Array, Dtype, dim};

use super::arrays::{ArrayShape, KvArrays};
use super::{BLOCK_TOKENS, LayerCacheShape};

/// Number of blocks below which a pool does not shrink.
const BLOCKS_MIN: usize = 8;

/// A block that sequences hold.
#[derive(Debug)]
pub(super) struct Block {
    number: Cell<usize>,
}

impl Block {
    /// Returns the number of its first row in arrays with one head.
    pub(super) fn first_row(&self) -> usize {
        self.number.get() * BLOCK_TOKENS
    }
}

/// The blocks of all sequences of a model.
#[derive(Debug)]
pub struct BlockPool {
    /// What each layer keeps in blocks, if anything.
    shapes: Vec<Option<ArrayShape>>,
    dtype: Dtype,
    /// Blocks by number; one that no sequence holds is free.
    blocks: Vec<Weak<Block>>,
    /// Arrays `[num_allocated * BLOCK_TOKENS * heads, width]` of each layer that keeps something in blocks;
    /// of such a layer, `None` only while they are replaced.
    layers: Vec<Option<KvArrays>>,
    num_allocated: usize,
    /// Copies that must be made before the next write.
    copies: Vec<BlockCopy>,
    unread: Vec<Array>,
}

/// Numbers of a block and of its copy.
#[derive(Clone, Copy, Debug)]
struct BlockCopy {
    source: usize,
    target: usize,
}

impl BlockPool {
    /// Creates a pool without blocks for the layers of a rank.
    pub(super) fn new(layers: &[LayerCacheShape], dtype: Dtype) -> BlockPool {
        let mut pool = BlockPool {
            shapes: layers.iter().map(ArrayShape::in_blocks).collect(),
            dtype,
            blocks: Vec::new(),
            layers: Vec::new(),
            num_allocated: 0,
            copies: Vec::new(),
            unread: Vec::new(),
        };
        pool.clear();
        pool
    }

    /// Frees all memory. No sequence holds a block.
    fn clear(&mut self) {
        self.layers = self.room(0);
        self.blocks.clear();
        self.num_allocated = 0;
    }

    /// Returns new blocks of all layers.
    fn room(&self, num_blocks: usize) -> Vec<Option<KvArrays>> {
        let num_rows = dim(num_blocks * BLOCK_TOKENS);
        let zeros = |shape: &ArrayShape| {
            KvArrays::zeros(shape, self.dtype, |heads, width| vec![num_rows * heads, width])
        };
        self.shapes.iter().map(|shape| shape.as_ref().map(zeros)).collect()
    }

    /// Returns the number of blocks that sequences hold; a shared one counts once.
    pub fn num_held(&self) -> usize {
        self.blocks.iter().filter(|block| 0 < block.strong_count()).count()
    }

    /// Returns a block that one sequence owns alone (copy-on-write): `held` if it is unshared, else
    /// a copy of it; without `held`, a free block. [`BlockPool::prepare`] allocates it.
    pub(super) fn own(&mut self, held: Option<Rc<Block>>) -> Rc<Block> {
        match held {
            Some(held) if Rc::strong_count(&held) == 1 => held,
            Some(held) => {
                let own = self.take();
                let [source, target] = [&held, &own].map(|block| block.number.get());
                self.copies.push(BlockCopy { source, target });
                own
            }
            None => self.take(),
        }
    }

    /// Returns a free block.
    fn take(&mut self) -> Rc<Block> {
        let free = self.blocks.iter().position(|block| block.strong_count() == 0);
        let number = free.unwrap_or(self.blocks.len());
        let block = Rc::new(Block { number: Cell::new(number) });
        match free {
            Some(number) => self.blocks[number] = Rc::downgrade(&block),
            None => self.blocks.push(Rc::downgrade(&block)),
        }
        block
    }

    /// Makes the blocks that the sequences of a step write to ready: allocates new ones and copies shared
    /// ones. Frees unused blocks if at most a quarter is held.
    pub fn prepare(&mut self) {
        if self.num_allocated < self.blocks.len() {
            let more = (self.blocks.len() - self.num_allocated).max(self.num_allocated / 4);
            let room = self.room(more);
            for (layer, room) in self.layers.iter_mut().zip(room) {
                *layer = layer.take().zip(room).map(|(held, room)| held.joined(&room));
            }
            self.num_allocated += more;
        }
        let copies = std::mem::take(&mut self.copies);
        if !copies.is_empty() {
            let sources = indices(copies.iter().map(|copy| copy.source));
            let targets = indices(copies.iter().map(|copy| copy.target));
            self.replace(|blocks| {
                let copied = blocks.take(&sources, 0).expand_dims(1);
                blocks.scatter([&targets], [0], &copied)
            });
        }
        let num_held = self.num_held();
        if BLOCKS_MIN < self.num_allocated && num_held * 4 <= self.num_allocated {
            self.compact();
        }
    }

    /// Moves the held blocks to the front and drops the others.
    fn compact(&mut self) {
        let held: Vec<Rc<Block>> = self.blocks.iter().filter_map(Weak::upgrade).collect();
        if held.is_empty() {
            return self.clear();
        }
        let kept = indices(held.iter().map(|block| block.number.get()));
        self.replace(|blocks| blocks.take(&kept, 0));
        held.iter().enumerate().for_each(|(number, block)| block.number.set(number));
        self.blocks = held.iter().map(Rc::downgrade).collect();
        self.num_allocated = held.len();
    }

    /// Replaces the arrays of all layers, `[blocks, elements]` for `change`.
    fn replace(&mut self, change: impl Fn(&Array) -> Array) {
        let num_allocated = dim(self.num_allocated);
        for layer in &mut self.layers {
            *layer = layer.take().map(|held| {
                held.map(|array| {
                    let width = array.dim(1);
                    change(&array.reshape(&[num_allocated, -1])).reshape(&[-1, width])
                })
            });
        }
    }

    /// Writes new positions into a layer, `[positions, heads, 1, width]`; `rows` are `[positions]`.
    ///
    /// # Panics
    /// Panics if the layer has no blocks.
    pub fn write(&mut self, layer: usize, new: &KvArrays, rows: &BlockRows) {
        let held = self.layers[layer].take().expect("the layer keeps something in blocks");
        let written = held.with(new, |held, new| held.scatter([&rows.of(new.dim(1))], [0], new));
        self.unread.push(written.index.as_ref().unwrap_or(&written.keys).clone());
        self.layers[layer] = Some(written);
    }

    /// Returns arrays that the step's graph has written and may not read (inputs of pools), so that
    /// they are evaluated with the step.
    pub(super) fn take_unread(&mut self) -> Vec<Array> {
        std::mem::take(&mut self.unread)
    }

    /// Returns keys and values of some positions, `[sequences, heads, positions, width]`; `rows` are
    /// `[sequences, positions]`.
    ///
    /// # Panics
    /// Panics if the layer has no blocks.
    pub fn read(&self, layer: usize, rows: &BlockRows) -> KvArrays {
        let held = self.layers[layer].as_ref().expect("the layer keeps something in blocks");
        let shape = self.shapes[layer].as_ref().expect("it has a shape");
        let rows = rows.of(dim(shape.kv_heads()));
        let take = |held: &Array| held.take(&rows, 0);
        KvArrays { keys: take(&held.keys), values: held.values.as_ref().map(take), index: None }
    }

    /// Returns what pools are computed from of some positions, `[pools, positions, width]`; `rows` are
    /// `[pools, positions]`.
    ///
    /// # Panics
    /// Panics if the layer has no blocks.
    pub fn read_raw(&self, layer: usize, rows: &BlockRows) -> Array {
        let held = self.layers[layer].as_ref().expect("the layer keeps something in blocks");
        held.index.as_ref().unwrap_or(&held.keys).take(&rows.rows, 0)
    }
}

fn indices(numbers: impl Iterator<Item = usize>) -> Array {
    let numbers: Vec<i32> = numbers.map(dim).collect();
    Array::from_slice(&numbers, &[dim(numbers.len())])
}

/// Where positions are in the blocks.
#[derive(Debug)]
pub struct BlockRows {
    rows: Array, // [positions] or [sequences, positions], i32
    /// Rows in arrays that have several heads for each position, by the number of heads.
    of_heads: RefCell<Vec<(i32, Array)>>,
}

impl BlockRows {
    /// Creates rows of an array `[positions]` or `[sequences, positions]`.
    pub fn new(rows: Array) -> BlockRows {
        BlockRows { rows, of_heads: RefCell::default() }
    }

    /// Returns the rows of each head, `[positions, heads]` or `[sequences, heads, positions]`.
    fn of(&self, heads: i32) -> Array {
        let mut known = self.of_heads.borrow_mut();
        if let Some((_, rows)) = known.iter().find(|(it, _)| *it == heads) {
            return rows.clone();
        }
        let mut rows = self.rows.expand_dims(1);
        if heads != 1 {
            let mut shape = vec![1; rows.shape().len() - 1];
            shape[0] = heads;
            let heads = Array::from_slice(&[heads], &[1]);
            let nth: Vec<i32> = (0..shape[0]).collect();
            rows = rows.mul(&heads).add(&Array::from_slice(&nth, &shape));
        }
        known.push((heads, rows.clone()));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::super::windows::WindowBlocks;
    use super::*;
    use crate::KvShape;

    const WINDOW: usize = 300;
    const HEADS: i32 = 2;

    fn pool() -> BlockPool {
        let positions = KvShape { kv_heads: 2, key_dim: 3, value_dim: 1, ..KvShape::default() };
        let window = LayerCacheShape::Window { positions, window: WINDOW };
        BlockPool::new(&[LayerCacheShape::None, window, window], Dtype::F32)
    }

    /// A sequence that writes what its positions and its own number say.
    struct Sequence {
        blocks: WindowBlocks,
        len: usize,
        number: f32,
    }

    impl Sequence {
        fn new(number: f32) -> Sequence {
            Sequence { blocks: WindowBlocks::new(WINDOW), len: 0, number }
        }

        fn fork(&self, len: usize, number: f32) -> Sequence {
            let end = len.div_ceil(BLOCK_TOKENS);
            let start = (len + 1).saturating_sub(WINDOW) / BLOCK_TOKENS;
            Sequence { blocks: self.blocks.fork(start, end), len, number }
        }

        fn rows(&self, positions: std::ops::Range<usize>, shape: &[i32]) -> BlockRows {
            let mut rows = Vec::new();
            self.blocks.append_rows(positions, &mut rows);
            BlockRows::new(Array::from_slice(&rows, shape))
        }

        fn value(&self, position: usize, layer: usize) -> f32 {
            position as f32 + self.number + layer as f32 / 4.0
        }
    }

    /// Writes more positions of several sequences.
    fn write(pool: &mut BlockPool, sequences: &mut [&mut Sequence], count: usize) {
        for sequence in sequences.iter_mut() {
            let end = sequence.len + count;
            sequence.blocks.extend(sequence.len, end);
            sequence.blocks.own(sequence.len, end, pool);
        }
        pool.prepare();
        for sequence in sequences {
            let positions = sequence.len..sequence.len + count;
            let rows = sequence.rows(positions.clone(), &[dim(count)]);
            for layer in [1, 2] {
                let values: Vec<f32> =
                    positions.clone().map(|it| sequence.value(it, layer)).collect();
                let values = Array::from_slice(&values, &[dim(count), 1, 1, 1]);
                let heads = Array::from_slice(&[0.0_f32, 0.5], &[1, HEADS, 1, 1]);
                let values = values.add(&heads);
                let new = KvArrays { keys: values.repeat(3, 3), values: Some(values), index: None };
                pool.write(layer, &new, &rows);
            }
            sequence.len += count;
        }
    }

    /// Checks all positions of a sequence from `start` on, in all layers and heads.
    fn check(pool: &BlockPool, sequence: &Sequence, start: usize) {
        let count = sequence.len - start;
        let rows = sequence.rows(start..sequence.len, &[1, dim(count)]);
        for layer in [1, 2] {
            let KvArrays { keys, values, .. } = pool.read(layer, &rows);
            let values = values.expect("they are kept");
            assert_eq!(keys.shape(), [1, HEADS, dim(count), 3]);
            assert_eq!(values.shape(), [1, HEADS, dim(count), 1]);
            let (keys, values) = (keys.to_vec::<f32>().unwrap(), values.to_vec::<f32>().unwrap());
            for (idx, &found) in values.iter().enumerate() {
                let position = start + idx % count;
                let expected = sequence.value(position, layer) + (idx / count) as f32 / 2.0;
                assert_eq!(found, expected, "position {position} of layer {layer}");
                assert_eq!(keys[3 * idx..3 * idx + 3], [expected; 3], "position {position}");
            }
        }
    }

    #[test]
    fn sequences_hold_only_the_blocks_that_were_not_freed() {
        let mut pool = pool();
        let mut long = Sequence::new(0.125);
        for _ in 0..20 {
            write(&mut pool, &mut [&mut long], 100);
            let first = (long.len + 1).saturating_sub(WINDOW) / BLOCK_TOKENS;
            long.blocks.free(0..first);
            check(&pool, &long, first * BLOCK_TOKENS);
            assert_eq!(pool.num_held(), long.len.div_ceil(BLOCK_TOKENS) - first);
        }
        assert!(pool.num_allocated <= 4, "{} blocks of 3 at a time", pool.num_allocated);
        drop(long);
        assert_eq!(pool.num_held(), 0);
    }

    #[test]
    fn a_fork_shares_blocks_until_one_side_writes_to_them() {
        let mut pool = pool();
        let mut source = Sequence::new(0.0);
        write(&mut pool, &mut [&mut source], 700);
        let mut forks = [source.fork(600, 0.0), source.fork(700, 0.0)];
        assert_eq!(pool.num_held(), 3);
        let [early, late] = &mut forks;
        (early.number, late.number) = (0.125, 0.25);
        write(&mut pool, &mut [early, late, &mut source], 5);
        assert_eq!(pool.num_held(), 5, "each has a last block of its own");
        source.number = 0.0;
        check(&pool, &source, 0);
        for (fork, len) in forks.iter_mut().zip([600, 700]) {
            let own = fork.number;
            check(&pool, fork, len);
            let end = std::mem::replace(&mut fork.len, len);
            fork.number = 0.0;
            check(&pool, fork, 512);
            (fork.len, fork.number) = (end, own);
        }
    }

    #[test]
    fn blocks_that_are_left_move_to_the_front() {
        let mut pool = pool();
        let mut sequences: Vec<Sequence> = (0..12_u8).map(|it| Sequence::new(it.into())).collect();
        write(&mut pool, &mut sequences.iter_mut().collect::<Vec<_>>(), 300);
        assert_eq!(pool.num_held(), 24);
        let mut left = [sequences.remove(11), sequences.remove(5)];
        drop(sequences);
        let [first, second] = &mut left;
        write(&mut pool, &mut [first, second], 1);
        assert_eq!((pool.num_held(), pool.num_allocated), (4, 4));
        left.iter().for_each(|sequence| check(&pool, sequence, 0));
        drop(left);
        pool.num_allocated = BLOCKS_MIN + 1;
        pool.prepare();
        assert_eq!(pool.num_allocated, 0);
    }
}
