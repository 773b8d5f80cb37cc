//! Counters of what the host does for the device, separate for each thread.

use std::cell::Cell;
use std::ops::{Add, Sub};

/// Counters of one thread since it started.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct HostCounters {
    /// Number of operations added to graphs. MLX may build several nodes for one operation.
    pub nodes: u64,
    /// Number of graphs that were submitted without waiting for them.
    pub submissions: u64,
    /// Number of evaluations that waited for the device, because not all values were computed yet.
    pub waits: u64,
    /// Bytes of values that the host wrote into arrays.
    pub bytes_written: u64,
    /// Bytes of computed values that the host read.
    pub bytes_read: u64,
}

impl Add for HostCounters {
    type Output = HostCounters;

    fn add(self, other: HostCounters) -> HostCounters {
        HostCounters {
            nodes: self.nodes + other.nodes,
            submissions: self.submissions + other.submissions,
            waits: self.waits + other.waits,
            bytes_written: self.bytes_written + other.bytes_written,
            bytes_read: self.bytes_read + other.bytes_read,
        }
    }
}

impl Sub for HostCounters {
    type Output = HostCounters;

    /// Returns what was counted since the reading `earlier`.
    fn sub(self, earlier: HostCounters) -> HostCounters {
        HostCounters {
            nodes: self.nodes - earlier.nodes,
            submissions: self.submissions - earlier.submissions,
            waits: self.waits - earlier.waits,
            bytes_written: self.bytes_written - earlier.bytes_written,
            bytes_read: self.bytes_read - earlier.bytes_read,
        }
    }
}

thread_local! {
    static COUNTERS: Cell<HostCounters> = const {
        Cell::new(HostCounters {
            nodes: 0,
            submissions: 0,
            waits: 0,
            bytes_written: 0,
            bytes_read: 0,
        })
    };
}

/// Returns the counters of this thread.
pub fn host_counters() -> HostCounters {
    COUNTERS.get()
}

pub(crate) fn count(add: impl FnOnce(&mut HostCounters)) {
    let mut counters = COUNTERS.get();
    add(&mut counters);
    COUNTERS.set(counters);
}
