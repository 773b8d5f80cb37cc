//! What the answers of one constraint have cost so far, which decides on which thread it runs next.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time from which on an answer counts as slow. Time in which the system ran other threads does
/// not count: on a busy machine it would make every constraint a slow one.
const SLOW: Duration = Duration::from_millis(1);

/// How much CPU time the masks of one constraint have taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CostHistory {
    total: Duration,
    num_slow: u32,
    /// Number of fast answers since the last slow one.
    num_fast_since: u32,
}

impl CostHistory {
    pub(crate) fn add(&mut self, cost: Duration) {
        self.total += cost;
        if SLOW < cost {
            self.num_slow = self.num_slow.saturating_add(1);
            self.num_fast_since = 0;
        } else {
            self.num_fast_since = self.num_fast_since.saturating_add(1);
        }
    }

    /// Whether the next answer is expected to be slow: the constraint has not yet given as many fast
    /// answers in a row as slow ones in all. The first answer of most constraints is slow, because it
    /// builds tables.
    pub(crate) fn is_slow(&self) -> bool {
        self.num_fast_since < self.num_slow
    }

    /// Returns the CPU time of all answers.
    pub(crate) fn total(&self) -> Duration {
        self.total
    }
}

/// Returns the CPU time that this thread has used.
pub(crate) fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constraint_is_slow_until_it_was_fast_as_often_as_slow() {
        let (slow, fast) = (Duration::from_millis(20), Duration::from_micros(20));
        let mut costs = CostHistory::default();
        assert!(!costs.is_slow());
        let cases = [
            (slow, true),
            (fast, false),
            (slow, true),
            (fast, true),
            (fast, false),
            (slow, true),
            (fast, true),
            (slow, true),
        ];
        for (idx, (cost, is_slow)) in cases.into_iter().enumerate() {
            costs.add(cost);
            assert_eq!(costs.is_slow(), is_slow, "{idx}");
        }
        assert_eq!(costs.total(), slow * 4 + fast * 4);
    }

    #[test]
    fn time_asleep_is_no_cost() {
        let begin = thread_cpu_time();
        std::thread::sleep(Duration::from_millis(30));
        assert!(thread_cpu_time() - begin < Duration::from_millis(20));
    }
}
