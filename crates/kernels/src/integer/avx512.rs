//! Whole-number products with `vpdpbusd`: 64 products of an unsigned byte (a code) and a signed one (a half of an
//! activation), added by fours into 16 lanes.
//!
//! Few rows of activations meet the packed weights as they are (`few`), streamed once; many meet a tile of weights
//! that was unpacked for all of them (`tile`). Both need the activations as lines of 64 bytes in the order in which
//! `codes` unpacks weights.
#![expect(unsafe_code, reason = "calling and loading for a detected instruction set")]
#![expect(
    clippy::needless_range_loop,
    reason = "indices name tokens, rows and registers alike, and iterators' closures would be compiled without the set"
)]

mod codes;
mod few;
mod tile;

use std::ops::Range;

use self::codes::{Codes, Nibbles, SignedNibbles, Wide};
use super::rounding::Rounded;
use crate::elements::ElementsMut;
use crate::quant::{QuantFormat, QuantMatrix, QuantMode};
use crate::simd::Avx512;
use crate::threads::Threads;

/// Declares functions compiled for the set.
macro_rules! for_avx512 {
    ($($item:item)*) => {
        $(
            #[target_feature(
                enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni"
            )]
            $item
        )*
    };
}
use for_avx512;

/// Bytes of a register.
const LINE: usize = 64;

/// Rows of activations above which weights are unpacked into tiles.
const FEW_TOKENS: usize = 5;

/// Bytes of the signed halves of activations, aligned to registers.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([i8; LINE]);

/// Rounded activations, cut into halves and ordered for one of the two products.
pub(super) struct Lines {
    proof: Avx512,
    lines: Vec<Line>,
    order: Order,
}

/// How the lines are ordered; a step is what [`Codes`] says it is.
#[derive(Clone, Copy)]
enum Order {
    /// `[tokens, steps, half, registers of a step]`.
    Few { token_lines: usize },
    /// `[tiles of tokens, steps, 16 * registers of a step, tokens of a tile, half]` of four bytes each.
    Tiles { token_lines: usize },
}

impl Lines {
    pub(super) fn new(x: &Rounded, format: QuantFormat, threads: &Threads) -> Lines {
        let proof = Avx512::detect().expect("`Threads` asserts its set");
        let columns = x.padded_groups * x.group_size;
        // Two bytes, the halves, for each column.
        let token_lines = columns * 2 / LINE;
        let num_registers = step_registers(format);
        let is_split = format.bits == 4;
        if x.tokens <= FEW_TOKENS {
            let mut lines = vec![Line([0; LINE]); x.tokens * token_lines];
            for (token, lines) in lines.chunks_mut(token_lines).enumerate() {
                order_row(&x.values[token * x.input..][..x.input], is_split, num_registers, lines);
            }
            return Lines { proof, lines, order: Order::Few { token_lines } };
        }
        let tile_lines = tile::TOKENS * token_lines;
        let mut lines = vec![Line([0; LINE]); x.tokens.div_ceil(tile::TOKENS) * tile_lines];
        let pieces = lines.chunks_mut(tile_lines).enumerate().collect();
        threads.for_each(pieces, |(piece, lines): (usize, &mut [Line])| {
            let mut row_lines = vec![Line([0; LINE]); token_lines];
            let tokens = piece * tile::TOKENS..((piece + 1) * tile::TOKENS).min(x.tokens);
            for (slot, token) in tokens.enumerate() {
                let values = &x.values[token * x.input..][..x.input];
                order_row(values, is_split, num_registers, &mut row_lines);
                tile::interleave(&row_lines, num_registers, is_split, slot, lines);
            }
        });
        Lines { proof, lines, order: Order::Tiles { token_lines } }
    }
}

/// Registers of unpacked codes in a step; see [`Codes`].
fn step_registers(format: QuantFormat) -> usize {
    if format.bits == 4 || format.group_size == 128 { 2 } else { 1 }
}

/// The halves of a row as lines `[steps, half, registers]`; with `is_split` the even columns of a step are in its first
/// register and the odd ones in its second.
fn order_row(values: &[i16], is_split: bool, num_registers: usize, lines: &mut [Line]) {
    let steps = values.chunks(LINE * num_registers).zip(lines.chunks_exact_mut(2 * num_registers));
    for (values, lines) in steps {
        let (high, low) = lines.split_at_mut(num_registers);
        if is_split {
            for (idx, pair) in values.as_chunks::<2>().0.iter().enumerate() {
                for (register, q) in pair.iter().enumerate() {
                    (high[register].0[idx], low[register].0[idx]) = halves(*q);
                }
            }
        } else {
            for (register, values) in values.chunks(LINE).enumerate() {
                for (idx, q) in values.iter().enumerate() {
                    (high[register].0[idx], low[register].0[idx]) = halves(*q);
                }
            }
        }
    }
}

/// `q = 256 * high + low`, for `q` up to 32639.
#[inline(always)]
fn halves(q: i16) -> (i8, i8) {
    (((i32::from(q) + 128) >> 8) as i8, q as i8)
}

/// See [`super::Prepared::multiply_rows`].
pub(super) fn multiply_rows(
    lines: &Lines,
    x: &Rounded,
    matrix: &QuantMatrix<'_>,
    rows: Range<usize>,
    out: &mut [ElementsMut<'_>],
) {
    let job = Job { lines, x, matrix, rows };
    let format = matrix.format;
    match (format.mode, format.bits, format.group_size) {
        (QuantMode::Affine, 4, 32) => job.run::<Nibbles, 4>(out),
        (QuantMode::Affine, 4, 64) => job.run::<Nibbles, 8>(out),
        (QuantMode::Affine, 4, _) => job.run::<Nibbles, 16>(out),
        (QuantMode::Affine, 2, _) => job.run_wide::<2>(out),
        (QuantMode::Affine, 3, _) => job.run_wide::<3>(out),
        (QuantMode::Affine, 5, _) => job.run_wide::<5>(out),
        (QuantMode::Affine, 6, _) => job.run_wide::<6>(out),
        (QuantMode::Affine, ..) => job.run_wide::<8>(out),
        (QuantMode::Nvfp4, ..) => job.run::<SignedNibbles, 2>(out),
        _ => job.run::<SignedNibbles, 4>(out),
    }
}

/// See [`super::avx512_peak_macs`].
pub(super) fn peak_macs() -> usize {
    let Avx512 { .. } = Avx512::detect().expect("asked for by a pool of this set");
    // SAFETY: just detected.
    unsafe { peak() }
}

for_avx512! {
    fn peak() -> usize {
        use std::arch::x86_64::*;
        const CHAINS: usize = 16;
        const STEPS: usize = 10_000;
        let (codes, x) = std::hint::black_box((_mm512_set1_epi8(3), _mm512_set1_epi8(-2)));
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        for _ in 0..STEPS {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, codes, x);
            }
        }
        std::hint::black_box(sums);
        // Two instructions, for the halves, make 64 products.
        CHAINS * STEPS * LINE / 2
    }
}

/// Some rows of a product.
struct Job<'a> {
    lines: &'a Lines,
    x: &'a Rounded,
    matrix: &'a QuantMatrix<'a>,
    rows: Range<usize>,
}

impl Job<'_> {
    fn run_wide<const BITS: usize>(&self, out: &mut [ElementsMut<'_>]) {
        match self.matrix.format.group_size {
            32 => self.run::<Wide<BITS, 1>, 8>(out),
            64 => self.run::<Wide<BITS, 1>, 16>(out),
            _ => self.run::<Wide<BITS, 2>, 16>(out),
        }
    }

    /// A group is in `LANES` lanes of a register, so sixteen groups are as many steps.
    fn run<C: Codes, const LANES: usize>(&self, out: &mut [ElementsMut<'_>]) {
        assert_eq!(self.x.group_size, LANES * 4 * C::REGISTERS, "lanes of a group");
        let Lines { proof: Avx512 { .. }, .. } = self.lines;
        match self.lines.order {
            // SAFETY: the proof says that the machine has what the functions are compiled for.
            Order::Few { token_lines } => unsafe {
                few::multiply::<C, LANES>(self, token_lines, out);
            },
            // SAFETY: as above.
            Order::Tiles { token_lines } => unsafe {
                tile::multiply::<C>(self, token_lines, out);
            },
        }
    }
}
