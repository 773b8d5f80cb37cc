//! Measuring a link: latency and bandwidth of each operation, beside a bare exchange over the
//! same sockets in the same run.

use std::time::{Duration, Instant};

use crate::bare::Bare;
use crate::dtype::Dtype;
use crate::error::TransportError;
use crate::group::Group;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkOp {
    /// A raw exchange between rank 0 and rank 1, see [`Bare`]. The other ranks wait.
    Bare,
    /// [`Group::all_sum`] of f32.
    AllSum,
    /// [`Group::all_gather`] of one such part per rank.
    AllGather,
    /// [`Group::send`] from rank 0 to rank 1 and back; half of the time is reported. The other
    /// ranks wait.
    SendRecv,
    /// [`Group::barrier`]; only measured for the first size.
    Barrier,
}

impl LinkOp {
    /// Everything that can be measured.
    pub const ALL: [LinkOp; 5] =
        [LinkOp::Bare, LinkOp::AllSum, LinkOp::AllGather, LinkOp::SendRecv, LinkOp::Barrier];

    /// The name in reports.
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

/// How long to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Time to spend on each operation and size.
    pub budget: Duration,
    /// Fewest timed calls, however long they take.
    pub iterations_min: u32,
    /// Most timed calls, however short they are.
    pub iterations_max: u32,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { budget: Duration::from_millis(500), iterations_min: 10, iterations_max: 20_000 }
    }
}

/// One measured operation and size, as this rank saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkRow {
    /// The operation.
    pub op: LinkOp,
    /// Bytes of the buffer of one rank.
    pub bytes: usize,
    /// Timed calls.
    pub iterations: u32,
    /// Half of the calls took at most this long.
    pub median_us: f64,
    /// Nine of ten calls took at most this long.
    pub p90_us: f64,
    /// All but one in a hundred calls took at most this long.
    pub p99_us: f64,
    /// `bytes` over the median time.
    pub bytes_per_s: f64,
    /// The time of each call, in their order.
    pub rounds_us: Vec<f64>,
}

impl LinkRow {
    /// The row of these call times, given in the calls' order.
    ///
    /// # Panics
    /// When there are no times.
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

/// Measures every operation at every size; all ranks call it with the same arguments.
///
/// Sizes are rounded up to whole f32. What a size or a group cannot do is left out.
///
/// # Errors
/// The first operation that fails.
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

/// Something to be measured: makes so many calls and adds the time of each.
pub type Contestant<'a, E> =
    Box<dyn FnMut(&mut Group, u32, &mut Vec<Duration>) -> Result<(), E> + 'a>;

/// The contestant for one of the group's own operations on `bytes` per rank.
pub fn contestant<'a, E: From<TransportError> + 'a>(
    op: LinkOp,
    bytes: usize,
    size: usize,
) -> Contestant<'a, E> {
    let mut buffers = Buffers::new(bytes, size);
    Box::new(move |group, calls, times| Ok(run(group, op, &mut buffers, calls, times)?))
}

/// Measures several things in short batches by turns, so that a noisy moment of the machine meets
/// all of them; all ranks call it with the same contestants. The times of each, in their order.
///
/// The group tells the ranks when to begin and rank 0's word how often; the contestants may use
/// the group or anything else.
///
/// # Errors
/// The first failure of the group or a contestant.
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

/// Which share of a core each rank's process burns while it waits in a barrier for the last rank,
/// which comes `late` after the others; all ranks call it with the same argument.
///
/// The share of the last rank is that of a process that sleeps.
///
/// # Errors
/// The first operation that fails; `late` must be shorter than the group's `op_timeout`.
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

/// Processor time of all threads of this process so far.
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

/// Whether every contestant has had its time, as rank 0 sees it.
fn is_enough(times: &[Vec<Duration>], effort: &Effort) -> bool {
    times.iter().all(|times| {
        let spent: Duration = times.iter().sum();
        let calls = times.len() as u32;
        calls >= effort.iterations_max || (calls >= effort.iterations_min && spent >= effort.budget)
    })
}

/// How many calls make a tenth of the budget.
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

/// The number of rank 0, on every rank.
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
        // The others wait at the next barrier.
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
