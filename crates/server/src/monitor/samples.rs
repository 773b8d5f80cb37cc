//! Recent samples of the memory of an engine's ranks.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use jackalope_serving::memory::MemoryUse;

/// Maximum number of samples that are kept.
pub(super) const SAMPLES_MAX: usize = 600;

/// Memory at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Time in seconds since 1970.
    pub(super) at: f64,
    pub(super) memory: MemoryUse,
    pub(super) is_loaded: bool,
}

/// Recent memory samples.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    list: Mutex<VecDeque<Sample>>,
}

impl Samples {
    pub(super) fn push(&self, sample: Sample) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if list.len() == SAMPLES_MAX {
            list.pop_front();
        }
        list.push_back(sample);
    }

    /// The last `count` samples, the newest last.
    pub(super) fn last(&self, count: usize) -> Vec<Sample> {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.iter().skip(list.len().saturating_sub(count)).copied().collect()
    }
}
