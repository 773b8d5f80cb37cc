//! Limits of the machine, with which the speed of every kernel is compared.

use std::time::{Duration, Instant};

use jackalope_simd::{Simd, Threads, WIDEST, Wide, advise_huge_pages, dispatched, dispatched_wide};

/// Number of bytes that a measurement reads or copies, well beyond the last-level cache.
const BYTES: usize = 256 << 20;

/// Number of words of a work item.
const PIECE_WORDS: usize = 1 << 17;

/// Number of empty jobs per run.
const DISPATCHES: usize = 1000;

/// Number of runs, of which the best counts.
const RUNS: usize = 5;

/// Limits of a machine, measured with the threads and the instruction set of a [`Threads`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory read bandwidth in bytes per second.
    pub read_bytes_per_s: f64,
    /// Time to start a job on all threads and wait for them, in seconds.
    pub dispatch_s: f64,
    /// Memory copy bandwidth in bytes per second; each byte counts once.
    pub copy_bytes_per_s: f64,
    /// Number of f32 multiply-adds per second.
    pub f32_macs_per_s: f64,
    /// Number of multiply-adds per second of 16-bit activations and 8-bit codes, if the set has a dedicated
    /// instruction for them.
    pub whole_macs_per_s: Option<f64>,
}

/// Measures the limits; takes about a second.
pub fn limits(threads: &Threads) -> Limits {
    let mut words: Vec<u64> = Vec::with_capacity(BYTES / 8);
    advise_huge_pages(words.spare_capacity_mut());
    words.resize(BYTES / 8, 1);
    let mut copy: Vec<u64> = Vec::with_capacity(BYTES / 8);
    advise_huge_pages(copy.spare_capacity_mut());
    copy.resize(BYTES / 8, 0);
    let read = best(|| {
        threads.for_each(words.chunks(PIECE_WORDS).collect(), |words: &[u64]| {
            let mut sum = 0;
            sum_words(threads.instructions(), words, &mut sum);
            std::hint::black_box(sum);
        });
    });
    let copied = best(|| {
        let pieces = copy.chunks_mut(PIECE_WORDS).zip(words.chunks(PIECE_WORDS)).collect();
        threads.for_each(pieces, |(to, from): (&mut [u64], &[u64])| to.copy_from_slice(from));
    });
    let f32_macs_per_s = macs_per_s(threads, || {
        let mut macs = 0;
        multiply_f32(threads.instructions(), &mut macs);
        macs
    });
    let dispatch = best(|| {
        for _ in 0..DISPATCHES {
            threads.for_each((0..threads.count()).collect(), |item| {
                std::hint::black_box(item);
            });
        }
    });
    Limits {
        dispatch_s: dispatch.as_secs_f64() / DISPATCHES as f64,
        read_bytes_per_s: BYTES as f64 / read.as_secs_f64(),
        copy_bytes_per_s: BYTES as f64 / copied.as_secs_f64(),
        f32_macs_per_s,
        whole_macs_per_s: whole_macs_per_s(threads),
    }
}

fn best(mut work: impl FnMut()) -> Duration {
    let run = |_| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    (0..RUNS).map(run).min().unwrap_or_default()
}

/// Returns the number of multiplications per second; `work` returns how many it did.
fn macs_per_s(threads: &Threads, work: impl Fn() -> usize + Sync) -> f64 {
    const PIECES: usize = 64;
    let macs = work() * PIECES;
    let time = best(|| {
        threads.for_each(vec![(); PIECES], |()| {
            std::hint::black_box(work());
        });
    });
    macs as f64 / time.as_secs_f64()
}

#[cfg(target_arch = "x86_64")]
fn whole_macs_per_s(threads: &Threads) -> Option<f64> {
    let has_peak = threads.instructions() == jackalope_simd::InstructionSet::Avx512;
    has_peak.then(|| macs_per_s(threads, crate::integer::avx512_peak_macs))
}

#[cfg(not(target_arch = "x86_64"))]
fn whole_macs_per_s(_threads: &Threads) -> Option<f64> {
    None
}

dispatched! { fn sum_words(words: &[u64], sum: &mut u64) = sum_words_with }

#[inline(always)]
fn sum_words_with<S: Simd>(_simd: S, words: &[u64], sum: &mut u64) {
    // Independent sums, so that the compiler uses several registers.
    let mut sums = [0_u64; 32];
    for words in words.as_chunks::<32>().0 {
        for (sum, word) in sums.iter_mut().zip(words) {
            *sum = sum.wrapping_add(*word);
        }
    }
    *sum = sums.iter().fold(0, |total, sum| total.wrapping_add(*sum));
}

dispatched_wide! { fn multiply_f32(macs: &mut usize) = multiply_f32_with }

#[inline(always)]
fn multiply_f32_with<W: Wide>(simd: W, macs: &mut usize) {
    const CHAINS: usize = 10;
    const STEPS: usize = 20_000;
    let factor = std::hint::black_box(simd.splat(0.5));
    let mut sums = [simd.splat(1.0); CHAINS];
    for _ in 0..STEPS {
        for sum in &mut sums {
            *sum = simd.mul_add(*sum, factor, factor);
        }
    }
    let mut lanes = [0.0; WIDEST];
    for sum in sums {
        simd.store(sum, &mut lanes);
        std::hint::black_box(&lanes);
    }
    *macs = CHAINS * STEPS * W::LANES;
}
