//! What the engine says about itself: a snapshot of plain numbers, for health checks, metrics and
//! benchmarks. Sums only grow, so two snapshots can be subtracted.

use std::time::{Duration, Instant};

use jackalope_protocol::{KernelTimings, Phase, RankFacts, RankMemory, StepTimings};

use crate::{Buckets, Failure, Limits, PressureStatus, RequestStats};

/// Everything there is to know about a running engine.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Whether requests are computed.
    pub state: EngineState,
    /// What requests are checked against; known from the first time the ranks are ready.
    pub limits: Option<Limits>,
    /// Each rank, by rank.
    pub ranks: Vec<RankStatus>,
    /// Requests that wait for room, preempted ones included.
    pub queued: usize,
    /// Requests that may wait before submissions are refused.
    pub queue_max: usize,
    /// Requests that own a cache.
    pub running: usize,
    /// Most requests that may own one at once.
    pub running_max: usize,
    /// Memory of keys and values.
    pub kv: KvStatus,
    /// Use of the prefix cache.
    pub prefix: PrefixStats,
    /// Events counted since the start.
    pub counters: Counters,
    /// Where the time of steps went.
    pub steps: StepStats,
    /// What requests took.
    pub requests: RequestStats,
    /// Time by which the next step has to complete, set while steps are in flight or ranks are
    /// being replaced. If it has passed, the engine is stalled.
    pub due_at: Option<Instant>,
    /// Losses of ranks.
    pub recovery: RecoveryStats,
    /// Memory that other programs take.
    pub pressure: PressureStatus,
    /// Links between machines that are known to be broken, also those that no rank needs now.
    pub broken_links: Vec<BrokenLink>,
}

/// A link between two machines over which they do not reach each other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BrokenLink {
    /// Both machines: `mac1 (10.0.0.1) and mac2 (10.0.0.2)`.
    pub between: String,
    /// Why it counts as broken.
    pub reason: String,
    /// When that was noticed.
    pub since: Instant,
}

/// Whether requests are computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum EngineState {
    /// The ranks are loading for the first time; submissions are refused.
    #[default]
    Starting,
    /// All is well.
    Ready,
    /// A rank is being replaced; submissions are taken and wait.
    Recovering {
        /// When the rank was lost.
        since: Instant,
        /// Why.
        failure: Failure,
    },
    /// Lost ranks make no progress; submissions are refused while the engine keeps trying.
    Failed {
        /// When the engine gave its requests up.
        since: Instant,
        /// The last failure.
        failure: Failure,
    },
    /// The engine has ended or is ending.
    Stopping,
}

impl EngineState {
    /// The word in messages and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            EngineState::Starting => "starting",
            EngineState::Ready => "ready",
            EngineState::Recovering { .. } => "recovering",
            EngineState::Failed { .. } => "failed",
            EngineState::Stopping => "stopping",
        }
    }
}

/// One rank.
#[derive(Clone, Debug)]
pub struct RankStatus {
    /// Its machine; empty where all ranks are on this one.
    pub host: String,
    /// Its process, where it is known.
    pub pid: Option<u32>,
    /// What it is busy with.
    pub phase: Phase,
    /// While loading: bytes in place, and in all.
    pub loaded_bytes: Option<(u64, u64)>,
    /// What it holds, once loaded.
    pub facts: Option<RankFacts>,
    /// Memory at its last heartbeat.
    pub memory: RankMemory,
    /// How long a message took to it and back, as of its last heartbeat.
    pub round_trip: Option<Duration>,
    /// When it last said anything.
    pub heard_at: Option<Instant>,
    /// Steps it has answered.
    pub steps: u64,
    /// Sums over those steps.
    pub timings: TimingSums,
    /// Whether its connection to each rank is encrypted, by rank; empty before the first group.
    pub encrypts: Vec<bool>,
}

impl RankStatus {
    pub(crate) fn new(host: String) -> RankStatus {
        RankStatus {
            host,
            pid: None,
            phase: Phase::Starting,
            loaded_bytes: None,
            facts: None,
            memory: RankMemory::default(),
            round_trip: None,
            heard_at: None,
            steps: 0,
            timings: TimingSums::default(),
            encrypts: Vec::new(),
        }
    }
}

/// Sums of [`StepTimings`], in microseconds.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TimingSums {
    /// From taking up the plan to the answer.
    pub total_us: u64,
    /// Inside collectives, waiting for peers included.
    pub collectives_us: u64,
    /// Drawing tokens on the host.
    pub sampling_us: u64,
    /// Building the graph and handling the plan.
    pub planning_us: u64,
    /// The kernels, where ranks report them.
    pub kernels: Vec<KernelTimings>,
    /// The part of `collectives_us` in which no byte moved: waiting for peers.
    pub waiting_us: u64,
    /// Payload bytes sent to peers.
    pub sent_bytes: u64,
    /// Payload bytes received from peers.
    pub received_bytes: u64,
}

impl TimingSums {
    pub(crate) fn add(&mut self, timings: &StepTimings) {
        self.total_us += u64::from(timings.total_us);
        self.collectives_us += u64::from(timings.collectives_us);
        self.sampling_us += u64::from(timings.sampling_us);
        self.planning_us += u64::from(timings.planning_us);
        self.waiting_us += u64::from(timings.waiting_us);
        self.sent_bytes += timings.sent_bytes;
        self.received_bytes += timings.received_bytes;
        for kernel in &timings.kernels {
            match self.kernels.iter_mut().find(|it| it.name == kernel.name) {
                Some(sum) => {
                    sum.calls += kernel.calls;
                    sum.time_ns += kernel.time_ns;
                    sum.bytes += kernel.bytes;
                }
                None => self.kernels.push(kernel.clone()),
            }
        }
    }
}

/// Memory of keys and values, over all ranks, as the brain accounts for it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct KvStatus {
    /// Owned by running requests.
    pub running_bytes: u64,
    /// Kept of finished requests until the memory is needed.
    pub kept_bytes: u64,
    /// Finished sequences kept.
    pub num_kept: usize,
    /// Most that is ever used.
    pub budget_bytes: u64,
    /// Bytes of one token over all ranks.
    pub bytes_per_token: u64,
    /// Tokens that fit; the rank with the least room decides.
    pub capacity_tokens: u64,
}

/// Use of the prefix cache.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PrefixStats {
    /// Tokens of sequences that began to run: prompts, and all tokens of preempted ones.
    pub wanted_tokens: u64,
    /// Those of them that were found cached.
    pub found_tokens: u64,
    /// Caches that went over to the next sequence without a copy.
    pub taken_over: u64,
    /// Caches that were copied.
    pub forked: u64,
    /// Caches given back for want of memory.
    pub evicted: u64,
}

/// Events counted since the start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Requests taken.
    pub requests: u64,
    /// Requests that ran to their end.
    pub finished: u64,
    /// Requests that ended because the model's output was not a number.
    pub not_a_number: u64,
    /// Requests whose caller left, or that were ended by their id.
    pub cancelled: u64,
    /// Requests given up.
    pub failed: u64,
    /// Requests refused because the queue was full, or a machine's memory was taken by others.
    pub refused: u64,
    /// Prompt tokens of the requests taken.
    pub prompt_tokens: u64,
    /// Tokens drawn.
    pub drawn_tokens: u64,
    /// Tokens drawn for requests that had ended a step before.
    pub dropped_tokens: u64,
    /// Requests sent back to wait for want of memory.
    pub preemptions: u64,
    /// Times the ranks were lost.
    pub failures: u64,
    /// Times they were brought back.
    pub recoveries: u64,
}

/// Losses of ranks; how often is among the [`Counters`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecoveryStats {
    /// When the group last broke.
    pub lost_at: Option<Instant>,
    /// Why.
    pub cause: Option<Failure>,
    /// How long it took until the group stood again; none while it does not.
    pub took: Option<Duration>,
    /// The sum of all those times.
    pub total: Duration,
}

impl RecoveryStats {
    /// The group is broken. What breaks while it is being formed again belongs to the same loss.
    pub(crate) fn begin(&mut self, cause: &Failure, now: Instant) {
        (self.lost_at, self.cause, self.took) = (Some(now), Some(cause.clone()), None);
    }

    /// The group stands.
    pub(crate) fn end(&mut self, now: Instant) {
        if let (Some(lost_at), None) = (self.lost_at, self.took) {
            let took = now.saturating_duration_since(lost_at);
            self.took = Some(took);
            self.total += took;
        }
    }
}

/// Where the time of steps went.
#[derive(Clone, Debug)]
pub struct StepStats {
    /// Steps answered.
    pub steps: u64,
    /// Tokens they computed.
    pub computed_tokens: u64,
    /// Choosing what to compute, in nanoseconds.
    pub plan_ns: u64,
    /// Encoding and writing plans, in nanoseconds.
    pub send_ns: u64,
    /// Taking answers in and telling events, in nanoseconds.
    pub commit_ns: u64,
    /// From the last answer, or from sending if nothing was in flight, to the answer, in
    /// nanoseconds. Less rank 0's own time this is what the brain and the sockets cost.
    pub interval_ns: u64,
    /// The same, one entry per step, in microseconds.
    pub interval_us: Histogram,
    /// Tokens computed per step.
    pub batch_tokens: Histogram,
    /// The same in vLLM's buckets: `iteration_tokens_total`.
    pub iteration_tokens: Buckets,
}

impl Default for StepStats {
    fn default() -> StepStats {
        StepStats {
            steps: 0,
            computed_tokens: 0,
            plan_ns: 0,
            send_ns: 0,
            commit_ns: 0,
            interval_ns: 0,
            interval_us: Histogram::default(),
            batch_tokens: Histogram::default(),
            iteration_tokens: Buckets::of_step_tokens(),
        }
    }
}

const SUB_BITS: u32 = 2;
const NUM_BUCKETS: usize = 128;

/// Counts of values in buckets a quarter of a power of two wide.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: [u64; NUM_BUCKETS],
    count: u64,
    sum: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [0; NUM_BUCKETS], count: 0, sum: 0 }
    }
}

impl Histogram {
    /// Counts one value.
    pub fn record(&mut self, value: u64) {
        self.counts[bucket_of(value)] += 1;
        self.count += 1;
        self.sum += value;
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Sum of the values.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Upper end of the bucket that holds the value of rank `quantile` in `[0, 1]`; 0 if empty.
    pub fn quantile(&self, quantile: f64) -> u64 {
        let wanted = ((self.count as f64 * quantile).ceil() as u64).max(1);
        let mut seen = 0;
        for (idx, count) in self.counts.iter().enumerate() {
            seen += count;
            if wanted <= seen {
                return upper_bound(idx);
            }
        }
        0
    }

    /// `(largest value, values up to it)` of every bucket up to the last used one, for metrics.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let num_used = self.counts.iter().rposition(|count| *count != 0).map_or(0, |idx| idx + 1);
        let mut seen = 0;
        self.counts[..num_used].iter().enumerate().map(move |(idx, count)| {
            seen += count;
            (upper_bound(idx), seen)
        })
    }

    /// What was recorded since `earlier`, a snapshot of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let mut difference = self.clone();
        for (count, before) in difference.counts.iter_mut().zip(earlier.counts) {
            *count -= before;
        }
        difference.count -= earlier.count;
        difference.sum -= earlier.sum;
        difference
    }
}

fn bucket_of(value: u64) -> usize {
    let sub = 1 << SUB_BITS;
    if value < sub {
        return value as usize;
    }
    let exponent = value.ilog2();
    let fraction = (value >> (exponent - SUB_BITS)) & (sub - 1);
    let idx = u64::from(exponent - SUB_BITS + 1) * sub + fraction;
    (idx as usize).min(NUM_BUCKETS - 1)
}

fn upper_bound(idx: usize) -> u64 {
    let sub = 1 << SUB_BITS;
    let idx = idx as u64;
    if idx < sub {
        return idx;
    }
    let (octave, fraction) = (idx / sub - 1, idx % sub);
    ((sub + fraction + 1) << octave) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_at_most_a_quarter_above_the_value() {
        for value in (0..5000).chain([1 << 20, (1 << 30) + 12345]) {
            let mut histogram = Histogram::default();
            histogram.record(value);
            let found = histogram.quantile(0.5);
            assert!(value <= found && found <= value + value / 4, "{value}: {found}");
        }
    }

    #[test]
    fn quantiles_and_buckets_count_every_value() {
        let mut histogram = Histogram::default();
        (1..=100).for_each(|value| histogram.record(value));
        assert_eq!(histogram.sum(), 5050);
        assert!((50..=63).contains(&histogram.quantile(0.5)));
        assert_eq!(histogram.cumulative().last(), Some((111, 100)));
        let earlier = histogram.clone();
        histogram.record(7);
        let since = histogram.since(&earlier);
        assert_eq!((since.count(), since.sum(), since.quantile(1.0)), (1, 7, 7));
    }
}
