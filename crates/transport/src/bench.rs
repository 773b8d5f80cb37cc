//! Measures a link: latency and bandwidth of each operation, beside a bare exchange over the same
//! sockets in the same run.

use std::time::{Duration, Instant};

use crate::bare::Bare;
use crate::dtype::Dtype;
use crate::error::TransportError;
use crate::group::Group;

/// Operation to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkOp {
    /// A raw exchange between rank 0 and rank 1, see [`Bare`]. The other ranks wait.
    Bare,
    /// [`Group::all_sum`] of f32.
    AllSum,
    /// [`Group::all_gather`] with a part of the measured size from each rank.
    AllGather,
    /// [`Group::send`] from rank 0 to rank 1 and back; half of the round trip is reported. The
    /// other ranks wait.
    SendRecv,
    /// [`Group::barrier`]; measured only for the first size.
    Barrier,
}

impl LinkOp {
    /// All operations that can be measured.
    pub const ALL: [LinkOp; 5] =
        [LinkOp::Bare, LinkOp::AllSum, LinkOp::AllGather, LinkOp::SendRecv, LinkOp::Barrier];

    /// Returns the name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            LinkOp::Bare => "bare_exchange",
            LinkOp::AllSum => "all_sum",
            LinkOp::AllGather => "all_gather",
            LinkOp::SendRecv => "send_recv",
            LinkOp::Barrier => "barrier",
        }
    }
}

/// Limits on the time and the number of calls of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Time to spend on each operation and size.
    pub budget: Duration,
    /// Minimum number of timed calls, however long they take.
    pub iterations_min: u32,
    /// Maximum number of timed calls, however short they are.
    pub iterations_max: u32,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { budget: Duration::from_millis(500), iterations_min: 10, iterations_max: 20_000 }
    }
}

/// Result for one operation and size, as measured by this rank.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkRow {
    /// The operation.
    pub op: LinkOp,
    /// Size of each rank's buffer in bytes.
    pub bytes: usize,
    /// Number of timed calls.
    pub iterations: u32,
    /// Median time of a call in microseconds.
    pub median_us: f64,
    /// 90th percentile of the call times in microseconds.
    pub p90_us: f64,
    /// 99th percentile of the call times in microseconds.
    pub p99_us: f64,
    /// `bytes` divided by the median time.
    pub bytes_per_s: f64,
    /// Time of each call in microseconds, in the order of the calls.
    pub rounds_us: Vec<f64>,
}

impl LinkRow {
    /// Computes the row for these call times, given in the order of the calls; sorts `times`.
    ///
    /// # Panics
    /// If `times` is empty.
    pub fn new(op: LinkOp, bytes: usize, times: &mut [Duration]) -> LinkRow {
        assert!(!times.is_empty(), "a row needs at least one timed call");
        let rounds_us = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
        times.sort_unstable();
        let quantile_us = |percent: usize| {
            let idx = (times.len() * percent).div_ceil(100).clamp(1, times.len()) - 1;
            times[idx].as_secs_f64() * 1e6
        };
        let median_us = quantile_us(50);
        LinkRow {
            op,
            bytes,
            iterations: times.len() as u32,
            median_us,
            p90_us: quantile_us(90),
            p99_us: quantile_us(99),
            bytes_per_s: bytes as f64 / (median_us / 1e6),
            rounds_us,
        }
    }
}

/// Measures every operation at every size. All ranks must call it with the same arguments.
///
/// Sizes are rounded up to whole f32 elements. [`LinkOp::Bare`] and [`LinkOp::SendRecv`] are left
/// out in a group of one rank, and [`LinkOp::Barrier`] for all sizes but the first.
///
/// # Errors
/// Returns the error of the first operation that fails.
pub fn measure(
    group: &mut Group,
    ops: &[LinkOp],
    sizes: &[usize],
    effort: &Effort,
) -> Result<Vec<LinkRow>, TransportError> {
    let mut rows = Vec::new();
    for (size_idx, bytes) in sizes.iter().enumerate() {
        let bytes = bytes.next_multiple_of(4);
        let ops: Vec<LinkOp> = ops
            .iter()
            .copied()
            .filter(|op| group.size() > 1 || !matches!(op, LinkOp::Bare | LinkOp::SendRecv))
            .filter(|op| size_idx == 0 || *op != LinkOp::Barrier)
            .collect();
        let mut contestants: Vec<Contestant<'_, TransportError>> =
            ops.iter().map(|op| contestant(*op, bytes, group.size())).collect();
        let mut times = in_turns(group, &mut contestants, effort)?;
        let timed = ops.iter().zip(&mut times).map(|(op, times)| LinkRow::new(*op, bytes, times));
        rows.extend(timed);
    }
    Ok(rows)
}

/// An operation to measure, as a function: it makes the given number of calls and appends the time
/// of each.
pub type Contestant<'a, E> =
    Box<dyn FnMut(&mut Group, u32, &mut Vec<Duration>) -> Result<(), E> + 'a>;

/// Returns the contestant for one of the group's own operations with `bytes` per rank.
pub fn contestant<'a, E: From<TransportError> + 'a>(
    op: LinkOp,
    bytes: usize,
    size: usize,
) -> Contestant<'a, E> {
    let mut buffers = Buffers::new(bytes, size);
    Box::new(move |group, calls, times| Ok(run(group, op, &mut buffers, calls, times)?))
}

/// Measures several contestants in short batches in turn, so that a noisy moment of the machine
/// affects all of them. Returns the call times of each contestant, in the order of `contestants`.
/// All ranks must call it with the same contestants.
///
/// The group synchronises the start of each batch, and rank 0 decides the number of calls; the
/// contestants may use the group or anything else.
///
/// # Errors
/// Returns the first error of the group or of a contestant.
pub fn in_turns<E: From<TransportError>>(
    group: &mut Group,
    contestants: &mut [Contestant<'_, E>],
    effort: &Effort,
) -> Result<Vec<Vec<Duration>>, E> {
    let mut batches = Vec::with_capacity(contestants.len());
    for contestant in contestants.iter_mut() {
        batches.push(batch(group, contestant, effort)?);
    }
    let mut times = vec![Vec::new(); contestants.len()];
    loop {
        for ((contestant, batch), times) in contestants.iter_mut().zip(&batches).zip(&mut times) {
            group.barrier()?;
            contestant(group, *batch, times)?;
        }
        if agree(group, u32::from(is_enough(&times, effort)))? == 1 {
            return Ok(times);
        }
    }
}

/// Returns the share of a core that each rank's process uses while it waits in a barrier for the
/// last rank, which arrives `late` after the others. All ranks must call it with the same argument.
///
/// The share of the last rank is that of a sleeping process.
///
/// # Errors
/// Returns the error of the first operation that fails; `late` must be shorter than the group's
/// `op_timeout`.
pub fn measure_idle(group: &mut Group, late: Duration) -> Result<Vec<f32>, TransportError> {
    group.barrier()?;
    let (started, busy_before) = (Instant::now(), process_time());
    if group.rank() + 1 == group.size() {
        std::thread::sleep(late);
    }
    group.barrier()?;
    let busy = process_time().saturating_sub(busy_before);
    let share = (busy.as_secs_f64() / started.elapsed().as_secs_f64()) as f32;
    let mut shares = vec![0; 4 * group.size()];
    group.all_gather(&share.to_le_bytes(), &mut shares, Dtype::F32)?;
    let (shares, _) = shares.as_chunks::<4>();
    Ok(shares.iter().map(|share| f32::from_le_bytes(*share)).collect())
}

/// Returns the processor time that all threads of this process have used.
fn process_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

struct Buffers {
    out: Vec<u8>,
    into: Vec<u8>,
    all: Vec<u8>,
}

impl Buffers {
    fn new(bytes: usize, size: usize) -> Buffers {
        // Zeros stay zeros however often they are summed. The pages are touched before the clock
        // starts.
        Buffers { out: vec![0; bytes], into: vec![0; bytes], all: vec![0; bytes * size] }
    }
}

/// Whether every contestant has been measured for long enough, by the clock of this rank.
fn is_enough(times: &[Vec<Duration>], effort: &Effort) -> bool {
    times.iter().all(|times| {
        let spent: Duration = times.iter().sum();
        let calls = times.len() as u32;
        calls >= effort.iterations_max || (calls >= effort.iterations_min && spent >= effort.budget)
    })
}

/// Returns the number of calls that take about a tenth of the budget.
fn batch<E: From<TransportError>>(
    group: &mut Group,
    contestant: &mut Contestant<'_, E>,
    effort: &Effort,
) -> Result<u32, E> {
    const TRIALS: u32 = 3;
    let mut times = Vec::new();
    group.barrier()?;
    contestant(group, TRIALS, &mut times)?;
    times.sort_unstable();
    let typical = times[times.len() / 2].max(Duration::from_nanos(100));
    let fitting = effort.budget.as_nanos() / typical.as_nanos() / 10;
    let most = u128::from(effort.iterations_max.div_ceil(10));
    Ok(agree(group, fitting.clamp(1, most.max(1)) as u32)?)
}

/// Returns the `number` of rank 0 on every rank.
fn agree(group: &mut Group, number: u32) -> Result<u32, TransportError> {
    let number = if group.rank() == 0 { number } else { 0 };
    let mut vote = number.to_le_bytes();
    group.all_sum(&mut vote, Dtype::U32)?;
    Ok(u32::from_le_bytes(vote))
}

fn run(
    group: &mut Group,
    op: LinkOp,
    buffers: &mut Buffers,
    iterations: u32,
    times: &mut Vec<Duration>,
) -> Result<(), TransportError> {
    let rank = group.rank();
    match op {
        LinkOp::Bare if rank < 2 => {
            let mut bare = Bare::new(group, 1 - rank)?;
            for _ in 0..iterations {
                let started = Instant::now();
                bare.exchange(&buffers.out, &mut buffers.into)?;
                times.push(started.elapsed());
            }
        }
        LinkOp::SendRecv if rank < 2 => {
            for _ in 0..iterations {
                let started = Instant::now();
                if rank == 0 {
                    group.send(&buffers.out, Dtype::F32, 1)?;
                }
                group.recv(&mut buffers.into, Dtype::F32, 1 - rank)?;
                if rank == 1 {
                    group.send(&buffers.out, Dtype::F32, 0)?;
                }
                times.push(started.elapsed() / 2);
            }
        }
        // The other ranks wait at the next barrier.
        LinkOp::Bare | LinkOp::SendRecv => times.push(Duration::ZERO),
        LinkOp::AllSum | LinkOp::AllGather | LinkOp::Barrier => {
            for _ in 0..iterations {
                let started = Instant::now();
                match op {
                    LinkOp::AllSum => group.all_sum(&mut buffers.out, Dtype::F32)?,
                    LinkOp::AllGather => {
                        group.all_gather(&buffers.out, &mut buffers.all, Dtype::F32)?;
                    }
                    _ => group.barrier()?,
                }
                times.push(started.elapsed());
            }
        }
    }
    Ok(())
}
