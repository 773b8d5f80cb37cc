//! The status of the engine: a snapshot of plain numbers, for health checks, metrics and
//! benchmarks. Sums only grow, so two snapshots can be subtracted.

use std::time::{Duration, Instant};

use jackalope_protocol::machine::Heat;
use jackalope_protocol::{Backend, KernelTimings, Phase, RankFacts, RankMemory, StepTimings};

use crate::{Buckets, Failure, MissReason, PressureStatus, RequestLimits, RequestStats};

/// A snapshot of a running engine.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// State of the engine.
    pub state: EngineState,
    /// Limits that requests are checked against; set once the ranks have been ready for the first
    /// time.
    pub limits: Option<RequestLimits>,
    /// Status of each rank, by rank.
    pub ranks: Vec<RankStatus>,
    /// Number of waiting requests, including preempted ones.
    pub queued: usize,
    /// Maximum number of waiting requests before submissions are refused.
    pub queue_max: usize,
    /// Number of requests that own a cache.
    pub running: usize,
    /// Maximum number of requests that may own one at once.
    pub running_max: usize,
    /// Memory of keys and values.
    pub kv: KvStatus,
    /// Use of the prefix cache.
    pub prefix: PrefixStats,
    /// Events counted since the start.
    pub counters: Counters,
    /// Breakdown of the steps' time.
    pub steps: StepStats,
    /// Metrics of requests.
    pub requests: RequestStats,
    /// Time by which the next step has to complete, set while steps are in flight or ranks are
    /// being replaced. If it has passed, the engine is stalled.
    pub due_at: Option<Instant>,
    /// Last failure of the first start of the ranks, until they are ready.
    pub start_failure: Option<Failure>,
    /// Losses of ranks.
    pub recovery: RecoveryStats,
    /// Memory pressure, caused by other programs.
    pub pressure: PressureStatus,
    /// Temperature, power and GPU load of the machines that report them.
    pub heat: Vec<MachineHeat>,
    /// Links between machines that are known to be broken, also those that no rank needs now.
    pub broken_links: Vec<BrokenLink>,
}

impl Status {
    /// Estimates the time until all ranks have loaded, at their pace in the `elapsed` time; `None` if no rank is
    /// loading.
    pub fn loading_time_left(&self, elapsed: Duration) -> Option<Duration> {
        if self.state != EngineState::Starting {
            return None;
        }
        let of_rank = |(done, total): (u64, u64)| {
            let left = total.saturating_sub(done) as f64 / (done.max(1)) as f64;
            (0 < done).then(|| elapsed.mul_f64(left.min(1e6)))
        };
        self.ranks.iter().filter_map(|rank| of_rank(rank.loaded_bytes?)).max()
    }
}

/// Temperature, power and GPU load of one machine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MachineHeat {
    /// Name of the machine, as in [`RankStatus::host`].
    pub host: String,
    /// What it reported last.
    pub heat: Heat,
}

/// A link between two machines over which they do not reach each other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BrokenLink {
    /// Both machines: `mac1 (10.0.0.1) and mac2 (10.0.0.2)`.
    pub between: String,
    /// Reason for which the link counts as broken.
    pub reason: String,
    /// Time at which it was detected.
    pub since: Instant,
}

/// State of the engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum EngineState {
    /// The ranks are loading for the first time; submissions are refused.
    #[default]
    Starting,
    /// The ranks are ready and compute requests.
    Ready,
    /// A rank is being replaced; submissions are accepted and wait.
    Recovering {
        /// Time at which the rank was lost.
        since: Instant,
        /// Failure that caused the loss.
        failure: Failure,
    },
    /// Lost ranks make no progress; submissions are refused while the engine keeps trying.
    Failed {
        /// Time at which the engine failed its requests.
        since: Instant,
        /// The last failure.
        failure: Failure,
    },
    /// The engine has ended or is ending.
    Stopping,
}

impl EngineState {
    /// Returns the name used in messages and metrics.
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

/// Status of one rank.
#[derive(Clone, Debug)]
pub struct RankStatus {
    /// Name of its machine; empty if all ranks are on this one.
    pub host: String,
    /// Id of its process, if known.
    pub pid: Option<u32>,
    /// Phase of the rank.
    pub phase: Phase,
    /// Bytes loaded and total bytes of its own part, from loading until the group stands.
    pub loaded_bytes: Option<(u64, u64)>,
    /// Facts about its shard, once loaded.
    pub facts: Option<RankFacts>,
    /// Memory usage at its last heartbeat.
    pub memory: RankMemory,
    /// Round-trip time of a message, as of its last heartbeat.
    pub round_trip: Option<Duration>,
    /// Time of its last message.
    pub last_message_at: Option<Instant>,
    /// Number of steps that it has answered.
    pub steps: u64,
    /// Sums over these steps.
    pub timings: TimingSums,
    /// Whether its connection to each rank is encrypted, by rank; empty before the first group.
    pub encrypts: Vec<bool>,
    /// Transport of its collectives; `None` if there is no other rank.
    pub transport: Option<RankTransport>,
}

/// Transport of a rank's collectives.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RankTransport {
    /// The transport.
    pub backend: Backend,
    /// RDMA devices through which the rank reaches the others, as the hostfile names them; empty
    /// unless the transport uses RDMA.
    pub rdma: Vec<String>,
}

impl RankStatus {
    /// Creates the status of each rank from its machine. `transports` has an entry for each rank, or
    /// none at all.
    pub(crate) fn starting(hosts: Vec<String>, transports: Vec<RankTransport>) -> Vec<RankStatus> {
        let transports = transports.into_iter().map(Some).chain(std::iter::repeat(None));
        let status = |(host, transport)| RankStatus { transport, ..RankStatus::new(host) };
        hosts.into_iter().zip(transports).map(status).collect()
    }

    fn new(host: String) -> RankStatus {
        RankStatus {
            host,
            transport: None,
            pid: None,
            phase: Phase::Starting,
            loaded_bytes: None,
            facts: None,
            memory: RankMemory::default(),
            round_trip: None,
            last_message_at: None,
            steps: 0,
            timings: TimingSums::default(),
            encrypts: Vec::new(),
        }
    }

    /// Enters a phase. A rank that has loaded still counts, with all its bytes, so that progress
    /// over all ranks does not fall while others load.
    pub(crate) fn enter(&mut self, phase: Phase, loaded_bytes: Option<(u64, u64)>) {
        let whole = self.loaded_bytes.map(|(_, total)| (total, total));
        let is_loaded = matches!(phase, Phase::WarmingUp | Phase::Waiting | Phase::Joining);
        self.loaded_bytes = loaded_bytes.or(whole.filter(|_| is_loaded));
        self.phase = phase;
    }
}

/// Sums of [`StepTimings`], in microseconds.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TimingSums {
    /// Time from receiving the plan to the answer.
    pub total_us: u64,
    /// Time inside collectives, including waiting for peers.
    pub collectives_us: u64,
    /// Time for sampling tokens on the host.
    pub sampling_us: u64,
    /// Time for building the graph and handling the plan.
    pub planning_us: u64,
    /// Times of the kernels, if ranks report them.
    pub kernels: Vec<KernelTimings>,
    /// Part of `collectives_us` in which no byte moved because the rank waited for peers.
    pub waiting_us: u64,
    /// Payload bytes sent to peers.
    pub sent_bytes: u64,
    /// Payload bytes received from peers.
    pub received_bytes: u64,
    /// What the host did for the device.
    pub host: HostWork,
}

/// What the host of a rank did for its device, summed over steps.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct HostWork {
    /// Operations added to graphs.
    pub nodes: u64,
    /// Number of times that the host waited for the device.
    pub device_waits: u64,
    /// Time of those waits in microseconds, if steps are submitted ahead.
    pub device_wait_us: u64,
    /// Bytes that the host wrote into arrays and read from them.
    pub copied_bytes: u64,
}

impl HostWork {
    /// Returns the means of `steps` steps since `before`, as text for people.
    pub fn text_since(&self, before: &HostWork, steps: u64) -> String {
        let mean = |new: u64, old: u64| new.saturating_sub(old) as f64 / steps.max(1) as f64;
        format!(
            "host: {:.0} nodes, {:.1} waits of {:.1} µs together, {:.0} bytes copied",
            mean(self.nodes, before.nodes),
            mean(self.device_waits, before.device_waits),
            mean(self.device_wait_us, before.device_wait_us),
            mean(self.copied_bytes, before.copied_bytes),
        )
    }
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
        self.host.nodes += u64::from(timings.nodes);
        self.host.device_waits += u64::from(timings.device_waits);
        self.host.device_wait_us += u64::from(timings.device_wait_us);
        self.host.copied_bytes += timings.copied_bytes;
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

/// Memory of keys and values, over all ranks, as accounted for by the coordinator.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct KvStatus {
    /// Memory owned by running requests.
    pub running_bytes: u64,
    /// Memory kept for finished requests until it is needed.
    pub kept_bytes: u64,
    /// Number of finished sequences kept.
    pub num_kept: usize,
    /// Maximum memory that is ever used.
    pub budget_bytes: u64,
    /// Size of one token over all ranks, in bytes, without layers that free what their windows have
    /// passed.
    pub bytes_per_token: u64,
    /// Size over all ranks, in bytes, of one token in layers that free what their windows have
    /// passed.
    pub window_bytes_per_token: u64,
    /// Maximum number of tokens that a running sequence holds in such layers; 0 without them.
    pub window_tokens: u64,
    /// Size of the states of one sequence over all ranks, in bytes; each kept length takes as much
    /// again. 0 for models without states.
    pub state_bytes: u64,
    /// Number of tokens that fit; the rank with the least memory decides.
    pub capacity_tokens: u64,
}

/// Use of the prefix cache.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PrefixStats {
    /// Number of tokens of sequences that began to run: prompts, and all tokens of preempted ones.
    pub wanted_tokens: u64,
    /// Number of these tokens that were found in the cache.
    pub found_tokens: u64,
    /// Number of caches that were passed to the next sequence without a copy.
    pub taken_over: u64,
    /// Number of caches that were copied.
    pub forked: u64,
    /// Number of caches evicted for lack of memory.
    pub evicted: u64,
    /// Number of lengths at which states were kept.
    pub kept_lengths: u64,
    /// Number of kept lengths that were given up.
    pub forgotten_lengths: u64,
    /// Number of requests whose prompts were not taken from the cache as far as possible, by
    /// reason, in the order of [`MissReason::ALL`].
    misses: [u64; MissReason::ALL.len()],
}

impl PrefixStats {
    /// Returns the number of requests for each reason.
    pub fn misses(&self) -> impl Iterator<Item = (MissReason, u64)> {
        MissReason::ALL.into_iter().zip(self.misses)
    }

    pub(crate) fn count_miss(&mut self, reason: MissReason) {
        for (known, count) in MissReason::ALL.into_iter().zip(&mut self.misses) {
            *count += u64::from(known == reason);
        }
    }
}

/// Events counted since the start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Number of accepted requests.
    pub requests: u64,
    /// Number of completed requests.
    pub finished: u64,
    /// Number of requests that ended because the model's output was not a number.
    pub not_a_number: u64,
    /// Number of requests whose caller left, or that were cancelled by their id.
    pub cancelled: u64,
    /// Number of failed requests.
    pub failed: u64,
    /// Number of requests refused because the queue was full, or because other programs had taken a
    /// machine's memory.
    pub refused: u64,
    /// Number of prompt tokens of the accepted requests.
    pub prompt_tokens: u64,
    /// Number of sampled tokens.
    pub sampled_tokens: u64,
    /// Number of tokens sampled for requests that had ended one step earlier.
    pub dropped_tokens: u64,
    /// Number of preemptions for lack of memory.
    pub preemptions: u64,
    /// Number of losses of the ranks.
    pub failures: u64,
    /// Number of recoveries of the ranks.
    pub recoveries: u64,
}

/// Times of the losses of ranks; their number is in [`Counters`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecoveryStats {
    /// Time at which the group was last lost.
    pub lost_at: Option<Instant>,
    /// Failure that caused the loss.
    pub cause: Option<Failure>,
    /// Time until the group was up again; `None` while it is down.
    pub took: Option<Duration>,
    /// Sum of the times of all recoveries.
    pub total: Duration,
}

impl RecoveryStats {
    /// Records the loss of the group. A further loss while the group is being formed belongs to the
    /// same loss.
    pub(crate) fn begin(&mut self, cause: &Failure, now: Instant) {
        (self.lost_at, self.cause, self.took) = (Some(now), Some(cause.clone()), None);
    }

    /// Records that the group is up.
    pub(crate) fn end(&mut self, now: Instant) {
        if let (Some(lost_at), None) = (self.lost_at, self.took) {
            let took = now.saturating_duration_since(lost_at);
            self.took = Some(took);
            self.total += took;
        }
    }
}

/// Breakdown of the steps' time.
#[derive(Clone, Debug)]
pub struct StepStats {
    /// Number of answered steps.
    pub steps: u64,
    /// Number of tokens that they computed.
    pub computed_tokens: u64,
    /// Time for choosing what to compute, in nanoseconds.
    pub plan_ns: u64,
    /// Time for encoding and writing plans, in nanoseconds.
    pub send_ns: u64,
    /// Time for processing answers and sending events, in nanoseconds.
    pub commit_ns: u64,
    /// Time from the last answer, or from sending if nothing was in flight, to the answer, in
    /// nanoseconds. Minus rank 0's own time, this is the overhead of the coordinator and the
    /// sockets.
    pub interval_ns: u64,
    /// Distribution of the same time, one entry per step, in microseconds.
    pub interval_us: Histogram,
    /// Distribution of the number of tokens computed per step.
    pub batch_tokens: Histogram,
    /// Tokens of each step, in the buckets of vLLM's `iteration_tokens_total`.
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

/// A histogram with buckets that are a quarter of a power of two wide.
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

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of the values.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns the upper end of the bucket that holds the value of rank `quantile` in `[0, 1]`; 0
    /// if empty.
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

    /// Returns `(largest value, number of values up to it)` of every bucket up to the last used
    /// one, for metrics.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let num_used = self.counts.iter().rposition(|count| *count != 0).map_or(0, |idx| idx + 1);
        let mut seen = 0;
        self.counts[..num_used].iter().enumerate().map(move |(idx, count)| {
            seen += count;
            (upper_bound(idx), seen)
        })
    }

    /// Returns the values recorded since `earlier`, a snapshot of the same histogram.
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
    fn a_rank_that_has_loaded_counts_until_the_group_stands() {
        let mut rank = RankStatus::new(String::new());
        rank.enter(Phase::Loading, Some((3, 10)));
        assert_eq!(rank.loaded_bytes, Some((3, 10)));
        for phase in [Phase::WarmingUp, Phase::Waiting, Phase::Joining] {
            rank.enter(phase, None);
            assert_eq!(rank.loaded_bytes, Some((10, 10)));
        }
        rank.enter(Phase::Idle, None);
        assert_eq!(rank.loaded_bytes, None);
        rank.enter(Phase::Loading, Some((10, 10)));
        // Its process was lost, and another one begins.
        rank.enter(Phase::Starting, None);
        assert_eq!(rank.loaded_bytes, None);
    }

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
