//! Limits on the threads that render, parse and tokenise prompts.
//!
//! Large requests have slots of their own: however many there are, they leave cores for small ones,
//! whose first token must not wait for long documents of others. A request that waits for the
//! compilation of a grammar gives up its slot meanwhile ([`without_slot`]), because that may take seconds.

use std::cell::RefCell;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::ServerLimits;

/// Limits the number of requests that are prepared at once.
#[derive(Debug)]
pub(crate) struct PromptWorkers {
    large_bytes: usize,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl PromptWorkers {
    pub(crate) fn new(limits: &ServerLimits) -> PromptWorkers {
        PromptWorkers {
            large_bytes: limits.large_prompt_bytes,
            small: Arc::new(Semaphore::new(limits.prompt_workers)),
            large: Arc::new(Semaphore::new(limits.large_prompt_workers)),
        }
    }

    /// Waits for a slot for a request with a body of this size.
    pub(crate) async fn acquire(&self, body_bytes: usize) -> PromptSlot {
        let is_large = self.large_bytes < body_bytes;
        PromptSlot::acquire(Arc::clone(if is_large { &self.large } else { &self.small })).await
    }
}

thread_local! {
    /// The slot of the request that this thread prepares.
    static SLOT: RefCell<Option<PromptSlot>> = const { RefCell::new(None) };
}

/// One request's slot; freed when dropped.
#[derive(Debug)]
pub(crate) struct PromptSlot {
    slots: Arc<Semaphore>,
    _permit: OwnedSemaphorePermit,
}

impl PromptSlot {
    async fn acquire(slots: Arc<Semaphore>) -> PromptSlot {
        let permit = Arc::clone(&slots).acquire_owned().await;
        PromptSlot { slots, _permit: permit.expect("the semaphore is never closed") }
    }

    /// Runs `work` on this thread and frees the slot.
    pub(crate) fn hold_while<T>(self, work: impl FnOnce() -> T) -> T {
        /// Frees the slot even if the work panics.
        struct Freed;
        impl Drop for Freed {
            fn drop(&mut self) {
                SLOT.take();
            }
        }
        SLOT.set(Some(self));
        let _freed = Freed;
        work()
    }
}

/// Runs `work` without the slot of the request that this thread prepares, and then waits for a slot
/// again.
///
/// # Panics
/// Panics if the thread prepares a request and belongs to no runtime.
pub(crate) fn without_slot<T>(work: impl FnOnce() -> T) -> T {
    let slots = SLOT.take().map(|slot| Arc::clone(&slot.slots));
    let result = work();
    if let Some(slots) = slots {
        SLOT.set(Some(Handle::current().block_on(PromptSlot::acquire(slots))));
    }
    result
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn large_requests_leave_places_for_small_ones() {
        let limits = ServerLimits::default();
        let workers = PromptWorkers::new(&limits);
        let acquire = |bytes| workers.acquire(bytes).now_or_never();
        let large: Vec<_> = (0..10).map_while(|_| acquire(limits.large_prompt_bytes + 1)).collect();
        assert_eq!(large.len(), limits.large_prompt_workers);
        let small: Vec<_> = (0..10).map_while(|_| acquire(limits.large_prompt_bytes)).collect();
        assert_eq!(small.len(), limits.prompt_workers);
        drop(large);
        assert!(acquire(usize::MAX).is_some());
    }

    #[tokio::test]
    async fn a_request_that_waits_for_something_else_has_no_slot_meanwhile() {
        let limits = ServerLimits { prompt_workers: 1, ..ServerLimits::default() };
        let workers = Arc::new(PromptWorkers::new(&limits));
        let slot = workers.acquire(0).await;
        let others = Arc::clone(&workers);
        let is_free = move || others.acquire(0).now_or_never().is_some();
        let (before, during, after) = tokio::task::spawn_blocking(move || {
            slot.hold_while(|| (is_free(), without_slot(&is_free), is_free()))
        })
        .await
        .unwrap();
        assert_eq!((before, during, after), (false, true, false));
        assert!(workers.acquire(0).now_or_never().is_some());
        assert!(without_slot(|| true), "a thread without a slot runs the work too");
    }
}
