//! How work on many bytes shows its progress to people.

use std::fmt::Debug;

/// Shows progress.
pub trait Progress: Debug + Send + Sync {
    /// Begins to show the progress of work on this number of bytes.
    fn begin(&self, doing: &str, total_bytes: u64) -> Box<dyn ByteCount>;
}

/// The progress of one piece of work, which ends when this is dropped.
pub trait ByteCount: Send + Sync {
    /// Sets the number of bytes, once it is known.
    fn expect(&self, num_bytes: u64);

    /// Counts further bytes.
    fn add(&self, num_bytes: u64);

    /// Subtracts bytes that must be processed again.
    fn take_back(&self, num_bytes: u64);
}

/// Shows nothing.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _doing: &str, _total_bytes: u64) -> Box<dyn ByteCount> {
        Box::new(Silent)
    }
}

impl ByteCount for Silent {
    fn expect(&self, _num_bytes: u64) {}

    fn add(&self, _num_bytes: u64) {}

    fn take_back(&self, _num_bytes: u64) {}
}
