//! Bounds the memory of request bodies that are still arriving.
//!
//! A client may send its body as slowly as the timeout allows, so a body takes none of the slots for
//! generation requests until it has arrived.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::ApiError;
use crate::limits::ServerLimits;

/// Number of bytes of each body that do not count, so that small bodies are read even while large
/// ones take all the memory. The number of connections bounds the sum of these bytes.
const UNCOUNTED_BYTES: usize = 64 << 10;

/// Number of bytes of a permit.
const PERMIT_BYTES: usize = 1 << 10;

/// The memory for bodies that are arriving.
#[derive(Debug)]
pub struct BodyMemory {
    limit_bytes: usize,
    permits: Semaphore,
}

impl BodyMemory {
    /// Creates the memory with the size of these limits, or the size of the largest body if that is
    /// greater.
    pub fn new(limits: &ServerLimits) -> BodyMemory {
        let limit_bytes = limits.arriving_bytes.max(limits.body_bytes);
        let num_permits = (limit_bytes / PERMIT_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        BodyMemory { limit_bytes, permits: Semaphore::new(num_permits) }
    }

    /// Begins to count a body.
    pub(crate) fn body(&self) -> ArrivingBody<'_> {
        ArrivingBody { memory: self, permit: None }
    }
}

/// The memory that one body takes, which is released when this value is dropped.
#[derive(Debug)]
pub(crate) struct ArrivingBody<'a> {
    memory: &'a BodyMemory,
    permit: Option<SemaphorePermit<'a>>,
}

impl ArrivingBody<'_> {
    /// Takes the memory of a body that grows to `num_bytes`.
    ///
    /// # Errors
    /// Returns [`ApiError::BodyMemoryFull`] if other bodies take all the memory.
    pub(crate) fn grow_to(&mut self, num_bytes: usize) -> Result<(), ApiError> {
        let needed = num_bytes.saturating_sub(UNCOUNTED_BYTES).div_ceil(PERMIT_BYTES);
        let held = self.permit.as_ref().map_or(0, SemaphorePermit::num_permits);
        let missing = u32::try_from(needed.saturating_sub(held)).unwrap_or(u32::MAX);
        if missing == 0 {
            return Ok(());
        }
        let limit_bytes = self.memory.limit_bytes;
        let taken = self.memory.permits.try_acquire_many(missing);
        let taken = taken.map_err(|_| ApiError::BodyMemoryFull { limit_bytes })?;
        match &mut self.permit {
            Some(permit) => permit.merge(taken),
            None => self.permit = Some(taken),
        }
        Ok(())
    }

    /// Releases all the memory of the body, which is no longer kept.
    pub(crate) fn clear(&mut self) {
        self.permit = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_bodies_are_read_while_large_ones_fill_the_memory() {
        let limits = ServerLimits {
            body_bytes: 1 << 20,
            arriving_bytes: 3 << 20,
            ..ServerLimits::default()
        };
        let memory = BodyMemory::new(&limits);
        let mut bodies: Vec<ArrivingBody<'_>> = (0..4).map(|_| memory.body()).collect();
        let is_full = |grown: Result<(), ApiError>| matches!(grown, Err(ApiError::BodyMemoryFull { limit_bytes }) if limit_bytes == 3 << 20);
        for body in &mut bodies[..3] {
            body.grow_to(100).unwrap();
            body.grow_to((1 << 20) + UNCOUNTED_BYTES).unwrap();
        }
        assert!(is_full(bodies[3].grow_to(UNCOUNTED_BYTES + 1)));
        bodies[3].grow_to(UNCOUNTED_BYTES).unwrap();
        bodies[2].clear();
        bodies[3].grow_to(1 << 20).unwrap();
        drop(bodies);
        assert_eq!(memory.permits.available_permits(), 3 << 10);
    }

    #[test]
    fn the_largest_body_always_fits() {
        let limits = ServerLimits { arriving_bytes: 0, ..ServerLimits::default() };
        BodyMemory::new(&limits).body().grow_to(limits.body_bytes).unwrap();
    }
}
