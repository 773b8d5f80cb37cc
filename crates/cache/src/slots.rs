//! Slots: where sequences that decode keep their keys and values for MLX's operations.
//!
//! The sequences of a capacity class lie side by side in one array per layer, so that one operation
//! writes the new keys of all of them and one computes the attention of all of them. Prompts are
//! computed in arrays of their own. A sequence moves into a slot when it decodes for the first time,
//! to a slot of the next class when it outgrows its class, and out of its slot when it has not
//! decoded for a while or gets several tokens at once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use jackalope_mlx::{Array, Dtype, dim};
use jackalope_recurrence::StateSlots;

use super::arrays::{ArrayShape, KvArrays};
use super::blocks::BlockPool;
use super::{BLOCK_TOKENS, LayerCacheShape};

/// Number of steps without a token after which a sequence gives up its slot if others need room.
const IDLE_STEPS_MAX: u64 = 16;

/// Place of the keys and values of a sequence.
#[derive(Debug)]
pub(crate) enum KvLocation {
    /// In arrays of the sequence's own, one pair for each layer; `None` before the first write.
    Own(Vec<Option<KvArrays>>),
    /// In a slot of a class.
    Slot { class: usize, slot: usize },
}

/// A sequence that decodes: where it is, and its length with the new token.
#[derive(Clone, Debug)]
pub struct Decoding {
    place: Rc<RefCell<KvLocation>>,
    len: usize,
}

/// The slots of a class after all sequences of a step have moved in.
#[derive(Debug)]
pub struct SlotAssignment {
    /// Capacity of the class in tokens.
    pub class: usize,
    /// Number of slots, those of other sequences and free ones included.
    pub num_slots: usize,
    /// For each sequence of the step in this class: its number in the step and its slot.
    pub members: Vec<SlotMember>,
}

/// A sequence of a step in a slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotMember {
    /// Number of the sequence among those that were placed.
    pub idx: usize,
    /// Slot of its class.
    pub slot: usize,
}

/// The slots of all sequences of a model.
#[derive(Debug)]
pub struct SlotPool {
    /// What each layer keeps of positions, then what each layer keeps of pools.
    shapes: Vec<Option<ArrayShape>>,
    dtype: Dtype,
    /// Classes of slots, by capacity in tokens.
    classes: BTreeMap<usize, SlotClass>,
    /// Number of steps so far.
    step: u64,
    /// Copies that must be made before the next step writes to their sources.
    copies: Vec<Array>,
    /// What the step's graph writes and perhaps does not read.
    unread: Vec<Array>,
    /// Slots of states.
    pub states: StateSlots,
    /// Blocks of layers with windows.
    pub blocks: BlockPool,
}

#[derive(Debug)]
struct SlotClass {
    slots: Vec<Option<Occupant>>,
    /// Arrays `[slots, kv_heads, rows, dim]` of each of the shapes; `None` only while they are replaced.
    layers: Vec<Option<KvArrays>>,
}

#[derive(Debug)]
struct Occupant {
    /// Gone when the sequence is gone.
    place: Weak<RefCell<KvLocation>>,
    last_step: u64,
}

/// Returns the capacity of the class for sequences of `len` tokens: 1, 2, 3, 4, 6, 8, 12, 16, …
/// blocks, of which at most a third stays empty.
pub fn capacity_class(len: usize) -> usize {
    let blocks = len.div_ceil(BLOCK_TOKENS);
    let power = blocks.next_power_of_two();
    let between = power / 4 * 3;
    BLOCK_TOKENS * if blocks <= between { between } else { power }
}

impl Decoding {
    pub(crate) fn new(place: Rc<RefCell<KvLocation>>, len: usize) -> Decoding {
        Decoding { place, len }
    }
}

impl SlotPool {
    /// Creates a pool without slots for the layers of a rank.
    pub fn new(layers: &[LayerCacheShape], dtype: Dtype) -> SlotPool {
        let states = StateSlots::new(layers.len());
        let blocks = BlockPool::new(layers, dtype);
        let shapes = layers.iter().map(ArrayShape::of_sequence);
        let [positions, pools] = [0, 1].map(|kind| shapes.clone().map(move |it| it[kind]));
        let shapes = positions.chain(pools).collect();
        let (classes, copies, unread) = (BTreeMap::new(), Vec::new(), Vec::new());
        SlotPool { shapes, dtype, classes, step: 0, copies, unread, states, blocks }
    }

    /// Returns the copies that were begun since the last call.
    pub(super) fn take_copies(&mut self) -> Vec<Array> {
        std::mem::take(&mut self.copies)
    }

    /// Notes arrays that a step's graph has written and perhaps does not read.
    pub(super) fn note_written(&mut self, written: impl IntoIterator<Item = Array>) {
        self.unread.extend(written);
    }

    /// Returns arrays that must be evaluated with the step whose graph was built, or they would become long
    /// graphs.
    pub fn take_unread(&mut self) -> Vec<Array> {
        let blocks = self.blocks.take_unread();
        std::mem::take(&mut self.unread).into_iter().chain(blocks).collect()
    }

    /// Gives each sequence a slot of its class.
    pub fn assign(&mut self, decoding: &[Decoding]) -> Vec<SlotAssignment> {
        self.step += 1;
        let mut newcomers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (idx, sequence) in decoding.iter().enumerate() {
            let class = capacity_class(sequence.len);
            let held = match *sequence.place.borrow() {
                KvLocation::Slot { class, slot } => Some((class, slot)),
                KvLocation::Own(_) => None,
            };
            match held {
                Some((held, slot)) if held == class => self.touch(class, slot),
                Some(_) => {
                    self.move_out(&sequence.place);
                    newcomers.entry(class).or_default().push(idx);
                }
                None => newcomers.entry(class).or_default().push(idx),
            }
        }
        for (class, newcomers) in newcomers {
            self.make_room(class, newcomers.len());
            for idx in newcomers {
                self.move_in(class, &decoding[idx].place);
            }
        }
        self.shrink();
        self.assignments(decoding)
    }

    /// Moves a sequence out of its slot, if it is in one.
    pub fn release(&mut self, sequence: &Decoding) {
        self.move_out(&sequence.place);
    }

    /// Moves a sequence to arrays of its own if it is in a slot.
    fn move_out(&mut self, place: &Rc<RefCell<KvLocation>>) {
        let KvLocation::Slot { class, slot } = *place.borrow() else { return };
        let own = self.copy(class, slot, class);
        *place.borrow_mut() = KvLocation::Own(own);
        let class = self.classes.get_mut(&class).expect("a slot has a class");
        class.slots[slot] = None;
    }

    /// Returns the number of arrays of a sequence, of each layer for positions, then of each layer for pools.
    pub(super) fn num_arrays(&self) -> usize {
        self.shapes.len()
    }

    /// Returns the number of a layer's arrays of pools.
    pub(super) fn pools(&self, layer: usize) -> usize {
        self.shapes.len() / 2 + layer
    }

    /// Returns the number of rows for `num_positions` positions in the arrays of this number.
    pub(super) fn num_rows(&self, number: usize, num_positions: usize) -> usize {
        self.shapes[number].map_or(0, |shape| shape.num_rows(num_positions))
    }

    /// Returns copies of the first `capacity` positions of a slot.
    pub(super) fn copy(
        &mut self,
        class: usize,
        slot: usize,
        capacity: usize,
    ) -> Vec<Option<KvArrays>> {
        let layers = self.classes[&class].layers.iter().enumerate();
        let copies = layers.map(|(number, layer)| {
            let layer = layer.as_ref()?.sequences(slot, slot + 1);
            Some(layer.fork(self.num_rows(number, capacity)))
        });
        let copies: Vec<Option<KvArrays>> = copies.collect();
        self.copies.extend(copies.iter().flatten().flat_map(KvArrays::handles));
        copies
    }

    /// Writes one new position of each sequence into a layer, `[sequences, kv_heads, 1, dim]`, and
    /// returns the keys and values of all slots.
    ///
    /// # Panics
    /// Panics if the class has no slots, or the layer no positions.
    pub fn write(
        &mut self,
        class: usize,
        layer: usize,
        new: &KvArrays,
        at: [&Array; 2],
    ) -> KvArrays {
        let class = self.classes.get_mut(&class).expect("an assigned class exists");
        let held = class.layers[layer].take().expect("a class has all layers with positions");
        let written = held.scattered(new, at);
        class.layers[layer] = Some(written.clone());
        self.note_written(written.index.clone());
        written
    }

    /// Returns the keys and values of all slots of a layer, which has written those of the step.
    ///
    /// # Panics
    /// Panics if the class has no slots, or the layer no positions.
    pub fn held(&self, class: usize, layer: usize) -> KvArrays {
        let held = self.classes[&class].layers[layer].as_ref();
        held.expect("a class has all layers with positions").clone()
    }

    /// Writes one new pool of each sequence into a layer, `[sequences, 1, 1, dim]`, at slots and numbers of
    /// pools.
    pub fn write_pools(&mut self, class: usize, layer: usize, new: &KvArrays, at: [&Array; 2]) {
        let written = self.write(class, self.pools(layer), new, at);
        self.note_written([written.keys]);
    }

    /// Returns what a layer keeps of the pools of all slots; those of the step are written.
    pub fn held_pools(&self, class: usize, layer: usize) -> KvArrays {
        self.held(class, self.pools(layer))
    }

    fn touch(&mut self, class: usize, slot: usize) {
        let class = self.classes.get_mut(&class).expect("a slot has a class");
        let occupant = class.slots[slot].as_mut().expect("a held slot is occupied");
        occupant.last_step = self.step;
    }

    /// Makes sure that `needed` slots of a class are free: those of sequences that are gone, then
    /// those of sequences that have not decoded for a while, then new ones.
    fn make_room(&mut self, class: usize, needed: usize) {
        let entry = self.classes.entry(class).or_insert_with(|| {
            let empty = |shape: &ArrayShape| room(shape, [0, class], self.dtype);
            let layers = self.shapes.iter().map(|shape| shape.as_ref().map(empty));
            SlotClass { slots: Vec::new(), layers: layers.collect() }
        });
        entry.forget_gone();
        let mut free = entry.slots.iter().filter(|slot| slot.is_none()).count();
        for place in entry.idle(self.step) {
            if needed <= free {
                break;
            }
            self.move_out(&place);
            free += 1;
        }
        if needed <= free {
            return;
        }
        let entry = self.classes.get_mut(&class).expect("the entry was just made");
        let num_slots = entry.slots.len();
        let more = (needed - free).max(num_slots / 4);
        for (layer, shape) in entry.layers.iter_mut().zip(&self.shapes) {
            let room = shape.as_ref().map(|shape| room(shape, [more, class], self.dtype));
            *layer = layer.take().zip(room).map(|(held, room)| held.joined(&room));
        }
        entry.slots.resize_with(num_slots + more, || None);
    }

    fn move_in(&mut self, class: usize, place: &Rc<RefCell<KvLocation>>) {
        let entry = self.classes.get_mut(&class).expect("room was made");
        let free = entry.slots.iter().position(Option::is_none);
        let slot = free.expect("room was made");
        let own = place.replace(KvLocation::Slot { class, slot });
        let KvLocation::Own(own) = own else { panic!("a sequence in a slot moves out first") };
        let nothing = |shape: &ArrayShape| room(shape, [1, 0], self.dtype);
        for ((layer, own), shape) in entry.layers.iter_mut().zip(own).zip(&self.shapes) {
            let own = own.or_else(|| shape.as_ref().map(nothing));
            *layer = layer.take().zip(own).map(|(held, own)| held.with_slot(slot, &own));
        }
        let occupant = Occupant { place: Rc::downgrade(place), last_step: self.step };
        entry.slots[slot] = Some(occupant);
    }

    /// Gives up classes without sequences, and the free slots of those of which at most a quarter is
    /// used.
    fn shrink(&mut self) {
        for class in self.classes.values_mut() {
            class.forget_gone();
            let used = class.slots.iter().flatten().count();
            if used == 0 {
                class.slots.clear();
            } else if used * 4 <= class.slots.len() {
                class.compact();
            }
        }
        self.classes.retain(|_, class| !class.slots.is_empty());
    }

    fn assignments(&self, decoding: &[Decoding]) -> Vec<SlotAssignment> {
        let mut members: BTreeMap<usize, Vec<SlotMember>> = BTreeMap::new();
        for (idx, sequence) in decoding.iter().enumerate() {
            let KvLocation::Slot { class, slot } = *sequence.place.borrow() else {
                panic!("every decoding sequence has a slot")
            };
            members.entry(class).or_default().push(SlotMember { idx, slot });
        }
        let assignment = |(class, members)| {
            let num_slots = self.classes[&class].slots.len();
            SlotAssignment { class, num_slots, members }
        };
        members.into_iter().map(assignment).collect()
    }
}

/// Returns arrays for a number of sequences with a number of positions each.
fn room(shape: &ArrayShape, [sequences, positions]: [usize; 2], dtype: Dtype) -> KvArrays {
    let num_rows = dim(shape.num_rows(positions));
    KvArrays::zeros(shape, dtype, |heads, width| vec![dim(sequences), heads, num_rows, width])
}

impl SlotClass {
    fn forget_gone(&mut self) {
        for slot in &mut self.slots {
            if slot.as_ref().is_some_and(|it| it.place.strong_count() == 0) {
                *slot = None;
            }
        }
    }

    /// Returns the places of sequences that have not decoded for a while, the longest first.
    fn idle(&self, step: u64) -> Vec<Rc<RefCell<KvLocation>>> {
        let mut idle: Vec<&Occupant> = self.slots.iter().flatten().collect();
        idle.retain(|occupant| IDLE_STEPS_MAX < step - occupant.last_step);
        idle.sort_by_key(|occupant| occupant.last_step);
        idle.iter().filter_map(|occupant| occupant.place.upgrade()).collect()
    }

    /// Moves the occupied slots to the front and drops the others.
    fn compact(&mut self) {
        let kept = |slot: &Option<Occupant>| slot.is_some();
        let indices = (0..self.slots.len()).filter(|&slot| kept(&self.slots[slot]));
        let indices: Vec<i32> =
            indices.map(|slot| i32::try_from(slot).expect("few slots")).collect();
        let len = i32::try_from(indices.len()).expect("few slots");
        let indices = Array::from_slice(&indices, &[len]);
        for layer in &mut self.layers {
            *layer = layer.take().map(|held| held.picked(&indices));
        }
        self.slots.retain(kept);
        for (new_slot, occupant) in self.slots.iter().flatten().enumerate() {
            let Some(place) = occupant.place.upgrade() else { continue };
            if let KvLocation::Slot { slot, .. } = &mut *place.borrow_mut() {
                *slot = new_slot;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvShape;

    fn pool() -> SlotPool {
        let shape = KvShape { kv_heads: 1, key_dim: 2, value_dim: 2, index_dim: 0, pools: None };
        SlotPool::new(&[LayerCacheShape::Positions(shape)], Dtype::F32)
    }

    fn sequence(len: usize) -> Decoding {
        Decoding { place: Rc::new(RefCell::new(KvLocation::Own(vec![None; 2]))), len }
    }

    fn slot(sequence: &Decoding) -> (usize, usize) {
        match *sequence.place.borrow() {
            KvLocation::Slot { class, slot } => (class, slot),
            KvLocation::Own(_) => panic!("not in a slot"),
        }
    }

    /// Writes `value` as the newest key and value of a sequence, and returns the first keys.
    fn write(pool: &mut SlotPool, sequence: &Decoding, value: f32) {
        let (class, slot) = slot(sequence);
        let new = Array::full(&[1, 1, 1, 2], value, Dtype::F32);
        let new = KvArrays { keys: new.clone(), values: Some(new), index: None };
        let index = |idx: usize| Array::from_slice(&[i32::try_from(idx).unwrap()], &[1]);
        pool.write(class, 0, &new, [&index(slot), &index(sequence.len - 1)]);
    }

    fn newest(pool: &mut SlotPool, sequence: &Decoding) -> f32 {
        let (class, slot) = slot(sequence);
        let copy = pool.copy(class, slot, class)[0].clone().unwrap();
        copy.keys.to_vec::<f32>().unwrap()[(sequence.len - 1) * 2]
    }

    #[test]
    fn a_class_holds_its_sequences_and_little_more() {
        let classes = [1, 256, 257, 513, 769, 1025, 1537, 2049, 3073].map(capacity_class);
        assert_eq!(classes, [1, 1, 2, 3, 4, 6, 8, 12, 16].map(|blocks| blocks * BLOCK_TOKENS));
    }

    #[test]
    fn sequences_keep_their_keys_when_others_come_and_go() {
        let mut pool = pool();
        let mut sequences: Vec<Decoding> = (1..=9).map(sequence).collect();
        pool.assign(&sequences);
        for (value, sequence) in (0_u8..).zip(&sequences) {
            write(&mut pool, sequence, value.into());
        }
        // Seven of nine go; the class shrinks, and the last two move to the front.
        sequences.drain(..7);
        let assigned = pool.assign(&sequences);
        assert_eq!(assigned[0].num_slots, 2);
        assert_eq!(
            [newest(&mut pool, &sequences[0]), newest(&mut pool, &sequences[1])],
            [7.0, 8.0]
        );
    }

    #[test]
    fn a_sequence_that_outgrows_its_class_takes_its_keys_along() {
        let mut pool = pool();
        let mut grown = sequence(BLOCK_TOKENS);
        pool.assign(std::slice::from_ref(&grown));
        write(&mut pool, &grown, 5.0);
        assert_eq!(slot(&grown).0, BLOCK_TOKENS);
        grown.len += 1;
        pool.assign(std::slice::from_ref(&grown));
        assert_eq!(slot(&grown).0, 2 * BLOCK_TOKENS);
        grown.len -= 1;
        assert_eq!(newest(&mut pool, &grown), 5.0);
        assert_eq!(pool.classes.len(), 1, "the smaller class is gone");
    }

    #[test]
    fn a_sequence_finds_nothing_of_the_one_that_had_its_slot() {
        let mut pool = pool();
        let sequence = |blocks: usize| {
            let own = Array::full(&[1, 1, dim(blocks * BLOCK_TOKENS), 2], 1.0, Dtype::F32);
            let own = KvArrays { keys: own.clone(), values: Some(own), index: None };
            let place = Rc::new(RefCell::new(KvLocation::Own(vec![Some(own), None])));
            Decoding { place, len: blocks * BLOCK_TOKENS }
        };
        let broken = sequence(6);
        pool.assign(std::slice::from_ref(&broken));
        write(&mut pool, &broken, f32::NAN);
        drop(broken);
        let next = sequence(5);
        pool.assign(std::slice::from_ref(&next));
        assert_eq!(slot(&next), (6 * BLOCK_TOKENS, 0));
        let held = pool.copy(6 * BLOCK_TOKENS, 0, 6 * BLOCK_TOKENS)[0].clone().unwrap();
        for array in held.handles() {
            let found = array.to_vec::<f32>().unwrap();
            let (own, rest) = found.split_at(2 * 5 * BLOCK_TOKENS);
            assert!(own.iter().all(|it| *it == 1.0) && rest.iter().all(|it| *it == 0.0));
        }
    }

    #[test]
    fn an_idle_sequence_gives_up_its_slot_only_when_another_needs_it() {
        let mut pool = pool();
        let (idle, busy, late) = (sequence(1), sequence(2), sequence(3));
        pool.assign(&[idle.clone(), busy.clone()]);
        write(&mut pool, &idle, 3.0);
        for _ in 0..=IDLE_STEPS_MAX {
            pool.assign(std::slice::from_ref(&busy));
        }
        assert_eq!(newest(&mut pool, &idle), 3.0);
        let assigned = pool.assign(&[busy, late]);
        assert_eq!(assigned[0].num_slots, 2);
        let KvLocation::Own(own) = &*idle.place.borrow() else { panic!("it gave up its slot") };
        assert_eq!(own[0].as_ref().unwrap().keys.to_vec::<f32>().unwrap()[0], 3.0);
    }
}
