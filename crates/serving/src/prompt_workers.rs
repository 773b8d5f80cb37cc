//! Limits on the threads that render, parse and tokenise prompts.
//!
//! Large requests have slots of their own: however many there are, they leave cores for small ones,
//! whose first token must not wait for long documents of others.

use std::sync::Arc;

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
    pub(crate) async fn acquire(&self, body_bytes: usize) -> OwnedSemaphorePermit {
        let is_large = self.large_bytes < body_bytes;
        let places = Arc::clone(if is_large { &self.large } else { &self.small });
        places.acquire_owned().await.expect("the semaphore is never closed")
    }
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
}
