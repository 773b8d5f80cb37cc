//! How work on many bytes shows its progress to people.

use std::fmt::Debug;

/// Shows the progress of work to people, for example on a terminal.
pub trait Progress: Debug + Send + Sync {
    /// Begins to show the progress of work on this number of bytes.
    fn begin(&self, doing: &str, total_bytes: u64) -> Box<dyn ByteCount>;
}

/// The progress of one piece of work, which ends when this is dropped.
pub trait ByteCount: Send + Sync {
    /// Sets the number of bytes, once it is known.
    fn expect(&self, num_bytes: u64);

    /// Counts bytes that have been processed.
    fn add(&self, num_bytes: u64);

    /// Subtracts bytes that must be processed again.
    fn take_back(&self, num_bytes: u64);
}

/// A [`Progress`] that shows nothing.
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

/// Formats a size in the unit that is easiest to read, with this number of decimals.
pub fn human_bytes(bytes: u64, decimals: usize) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while 1024.0 <= value && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.decimals$} {}", UNITS[unit])
}
