//! The lengths of one cache at which the ranks keep its states, and those at which they will.
//!
//! A layer with a state cannot go back: a cache of such a model can be cut or copied only at its
//! present length or at a length where its states were kept. The coordinator chooses these lengths
//! before they are computed, and ends a row there. Of a layer with a window, a kept length keeps the
//! positions before it.

use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of lengths that a cache keeps.
pub(crate) const KEPT_LENGTHS_MAX: usize = 16;

/// Maximum number of these that are multiples of the stride.
const LATTICE_MAX: usize = 8;

/// Maximum number of lengths of one cache that are wanted at the same time.
const WANTED_MAX: usize = 16;

/// A kept length.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct KeptLength {
    /// Whether it was chosen because another request is likely to start there. The others are
    /// multiples of the stride, and are given up first.
    pub(crate) is_chosen: bool,
    /// Time of the last use.
    pub(crate) used_at: u64,
}

/// Facts about a prompt when its cache is opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeepHints {
    /// Number of tokens that the next turn of the same conversation will share; 0 if unknown.
    pub(crate) num_stable: usize,
    /// Number of tokens that the prompt shares with a cache, however much of it can be reused.
    pub(crate) num_shared: usize,
    /// Length of the prompt.
    pub(crate) num_prompt_tokens: usize,
}

/// The kept and wanted lengths of a cache. Empty for models without states and windows.
#[derive(Debug, Default)]
pub(crate) struct KeptLengths {
    kept: BTreeMap<usize, KeptLength>,
    /// Lengths at which states will be kept, beside the multiples of the stride.
    wanted: BTreeSet<usize>,
    /// Every multiple of this is kept, as long as there is memory; 0 disables it.
    stride: usize,
}

impl KeptLengths {
    /// Returns the number of kept lengths.
    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Returns the kept length `num_tokens`.
    pub(crate) fn get(&self, num_tokens: usize) -> Option<KeptLength> {
        self.kept.get(&num_tokens).copied()
    }

    /// Returns the largest kept length of at most `most`; 0 if there is none.
    pub(crate) fn largest(&self, most: usize) -> usize {
        self.kept.range(..=most).next_back().map_or(0, |(length, _)| *length)
    }

    /// Returns the kept lengths of more than `most`.
    pub(crate) fn beyond(&self, most: usize) -> Vec<usize> {
        self.kept.range(most + 1..).map(|(length, _)| *length).collect()
    }

    /// Returns every kept length.
    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, KeptLength)> {
        self.kept.iter().map(|(length, kept)| (*length, *kept))
    }

    pub(crate) fn insert(&mut self, num_tokens: usize, kept: KeptLength) {
        self.wanted.remove(&num_tokens);
        self.kept.insert(num_tokens, kept);
    }

    pub(crate) fn remove(&mut self, num_tokens: usize) -> Option<KeptLength> {
        self.kept.remove(&num_tokens)
    }

    /// Chooses the lengths to keep of a sequence that starts at `start`. A length is left out if
    /// one that is at most `least` tokens shorter is there, because computing so few tokens again
    /// costs less than a state.
    pub(crate) fn choose(&mut self, start: usize, hints: KeepHints, least: usize, lattice: usize) {
        let KeepHints { num_stable, num_shared, num_prompt_tokens } = hints;
        self.wanted.clear();
        for (length, is_certain) in
            [(num_stable, true), (num_shared, false), (num_prompt_tokens.saturating_sub(1), false)]
        {
            let is_served = !is_certain && length < self.promised(start, length) + least;
            if start.max(least.saturating_sub(1)) < length && !is_served {
                self.wanted.insert(length);
            }
        }
        self.stride = lattice;
        while 0 < self.stride && LATTICE_MAX < num_prompt_tokens / self.stride {
            self.stride *= 2;
        }
    }

    /// Wants the states at a length that another sequence waits for.
    pub(crate) fn want(&mut self, num_tokens: usize) {
        if self.wanted.len() < WANTED_MAX {
            self.wanted.insert(num_tokens);
        }
    }

    /// Drops a wanted length for which there was no memory.
    pub(crate) fn give_up(&mut self, num_tokens: usize) {
        self.wanted.remove(&num_tokens);
    }

    /// Drops all wanted lengths, because no sequence computes the cache any more.
    pub(crate) fn stop_wanting(&mut self) {
        self.wanted.clear();
        self.stride = 0;
    }

    /// Returns the next length after `start` to keep.
    pub(crate) fn next(&self, start: usize) -> Option<usize> {
        let wanted = self.wanted.range(start + 1..).next().copied();
        let lattice = start.checked_div(self.stride).map(|number| (number + 1) * self.stride);
        wanted.into_iter().chain(lattice).min()
    }

    /// Returns whether the states at `num_tokens` are to be kept, and if so, whether this length
    /// was chosen.
    pub(crate) fn wants(&self, num_tokens: usize) -> Option<bool> {
        if self.kept.contains_key(&num_tokens) {
            return None;
        }
        let is_lattice = 0 < self.stride && num_tokens.is_multiple_of(self.stride);
        let is_chosen = self.wanted.contains(&num_tokens);
        (is_chosen || is_lattice).then_some(is_chosen)
    }

    /// Returns the largest length of at most `most` that is kept, or will be if `num_computed`
    /// positions are computed; 0 if there is none.
    pub(crate) fn promised(&self, num_computed: usize, most: usize) -> usize {
        let kept = self.largest(most);
        let from = num_computed + 1;
        let wanted = (from <= most).then(|| self.wanted.range(from..=most).next_back()).flatten();
        let lattice = most.checked_div(self.stride).map(|number| number * self.stride);
        let lattice = lattice.filter(|length| num_computed < *length);
        wanted.copied().into_iter().chain(lattice).fold(kept, usize::max)
    }

    /// Doubles the stride if more multiples of it are kept than allowed, and returns those to give
    /// up.
    pub(crate) fn thin(&mut self) -> Vec<usize> {
        let lattice = || self.kept.iter().filter(|(_, kept)| !kept.is_chosen);
        if lattice().count() <= LATTICE_MAX || self.stride == 0 {
            return Vec::new();
        }
        self.stride *= 2;
        let stride = self.stride;
        lattice().map(|(length, _)| *length).filter(|it| !it.is_multiple_of(stride)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(start: usize, stable: usize, shared: usize, prompt: usize) -> Vec<usize> {
        let mut lengths = KeptLengths::default();
        lengths.insert(start, KeptLength { is_chosen: true, used_at: 0 });
        let hints = KeepHints { num_stable: stable, num_shared: shared, num_prompt_tokens: prompt };
        lengths.choose(start, hints, 16, 0);
        lengths.wanted.into_iter().collect()
    }

    #[test]
    fn the_stable_prefix_is_kept_and_what_it_serves_is_not() {
        assert_eq!(chosen(0, 97, 0, 100), [97], "the prompt's end is three tokens further");
        assert_eq!(chosen(0, 50, 0, 100), [50, 99]);
        assert_eq!(chosen(0, 0, 0, 100), [99]);
        assert_eq!(chosen(0, 97, 60, 100), [60, 97], "a question after a document");
        assert_eq!(chosen(0, 97, 95, 100), [95, 97]);
        assert_eq!(chosen(0, 97, 98, 100), [97]);
        assert_eq!(chosen(97, 97, 97, 100), [] as [usize; 0], "nothing before the start");
        assert_eq!(chosen(0, 0, 0, 9), [] as [usize; 0], "too short to be worth a state");
    }

    #[test]
    fn a_long_prompt_has_few_multiples_and_growth_thins_them() {
        let mut lengths = KeptLengths::default();
        let hints = KeepHints { num_prompt_tokens: 100_000, ..KeepHints::default() };
        lengths.choose(0, hints, 16, 2048);
        let mut at = 0;
        let mut num_kept = 0;
        while at < 1_000_000 {
            at = lengths.next(at).expect("the multiples do not end");
            let Some(is_chosen) = lengths.wants(at) else { panic!("{at} was wanted") };
            lengths.insert(at, KeptLength { is_chosen, used_at: 0 });
            for length in lengths.thin() {
                assert!(lengths.remove(length).is_some());
            }
            num_kept = num_kept.max(lengths.len());
        }
        assert!(LATTICE_MAX / 2 < num_kept && num_kept <= LATTICE_MAX + 1, "{num_kept}");
        assert_eq!(lengths.largest(99_999), 99_999, "the end of the prompt stays");
    }

    #[test]
    fn a_promise_is_what_will_be_kept() {
        let mut lengths = KeptLengths::default();
        lengths.want(20);
        lengths.insert(10, KeptLength { is_chosen: true, used_at: 0 });
        assert_eq!([9, 10, 19, 20, 30].map(|most| lengths.promised(12, most)), [0, 10, 10, 20, 20]);
        assert_eq!(lengths.promised(20, 30), 10, "it was passed without being kept");
        assert_eq!((lengths.next(0), lengths.next(20)), (Some(20), None));
        lengths.stop_wanting();
        assert_eq!(lengths.promised(0, 30), 10);
    }
}
