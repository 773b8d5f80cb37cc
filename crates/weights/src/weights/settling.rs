//! Moves weights into huge pages while the next ones are read.
//!
//! On a CPU a step reads all weights, and small pages cost up to half of the memory bandwidth. Moving copies the weights
//! once, which takes about as long as reading them from a fast disk, so a thread of its own does it.

use std::ops::Range;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// Number of bytes that are moved together: a page that two weights share is then copied once.
const BATCH_BYTES: usize = 64 << 20;

/// Number of batches that may wait. After that, reading waits for the thread.
const QUEUE_BATCHES: usize = 4;

/// Addresses of weights that have been read.
type Batch = Vec<Range<usize>>;

/// The thread that moves weights. It ends when this is dropped, after what it has been given.
#[derive(Debug)]
pub(super) struct Settler {
    batch: Batch,
    batch_bytes: usize,
    queue: SyncSender<Batch>,
    thread: JoinHandle<()>,
}

impl Settler {
    /// Starts the thread.
    ///
    /// # Panics
    /// Panics if the system starts no thread.
    pub(super) fn start() -> Settler {
        Settler::with(|batch| {
            // A system without huge pages keeps small ones.
            let _moved_bytes = jackalope_simd::move_into_huge_pages(batch);
        })
    }

    /// Starts a thread that calls `move_batch` for each batch.
    fn with(move_batch: impl FnMut(Batch) + Send + 'static) -> Settler {
        let (queue, batches) = sync_channel::<Batch>(QUEUE_BATCHES);
        let thread = thread::spawn(move || batches.into_iter().for_each(move_batch));
        Settler { batch: Vec::new(), batch_bytes: 0, queue, thread }
    }

    /// Has `weights` moved, which must be filled by now. They may be freed at any time.
    pub(super) fn add(&mut self, weights: &[u8]) {
        self.batch.push(jackalope_simd::addresses(weights));
        self.batch_bytes += weights.len();
        if BATCH_BYTES <= self.batch_bytes {
            self.send();
        }
    }

    /// Waits until all weights have been moved.
    pub(super) fn finish(mut self) {
        self.send();
        drop(self.queue);
        self.thread.join().expect("moving pages does not panic");
    }

    fn send(&mut self) {
        self.batch_bytes = 0;
        self.queue.send(std::mem::take(&mut self.batch)).expect("the thread waits for batches");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;

    /// Includes the last weights, which do not fill a batch; moving takes some time.
    #[test]
    fn all_weights_are_moved_once_before_loading_ends() {
        let weights: Vec<Vec<u8>> = (1..60).map(|idx| vec![1; idx << 18]).collect();
        let moved = Arc::new(Mutex::new(Vec::new()));
        let mut settler = Settler::with({
            let moved = Arc::clone(&moved);
            move |batch| {
                thread::sleep(Duration::from_millis(2));
                moved.lock().unwrap().extend(batch);
            }
        });
        for weights in &weights {
            settler.add(weights);
        }
        settler.finish();
        let added: Vec<_> = weights.iter().map(|it| jackalope_simd::addresses(it)).collect();
        assert_eq!(*moved.lock().unwrap(), added);
    }

    #[test]
    fn weights_keep_their_values_and_may_be_freed() {
        let mut settler = Settler::start();
        let mut weights = Vec::new();
        for value in 0..40 {
            settler.add(&vec![value; 5_000_000]);
            weights.push(vec![value; 3_000_000]);
            settler.add(&weights[usize::from(value)]);
        }
        settler.finish();
        for (value, weights) in weights.iter().enumerate() {
            assert!(weights.iter().all(|byte| usize::from(*byte) == value));
        }
    }
}
