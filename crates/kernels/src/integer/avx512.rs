//! Integer products with `vpdpbusd`: 64 products of an unsigned byte (a code) and a signed one (a half of an
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

use std::arch::x86_64::*;
use std::ops::Range;

use jackalope_simd::{Avx512, QuantFormat, QuantMatrix, QuantMode, Threads};

use self::codes::{Codes, Fields, SignedNibbles, Threes, Wide};
use super::rounding::Rounded;
use crate::terms::Results;

/// Declares functions compiled for the instruction set.
macro_rules! for_avx512 {
    ($($item:item)*) => {
        $(
            #[target_feature(
                enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"
            )]
            $item
        )*
    };
}
use for_avx512;

/// Number of bytes of a register.
const LINE: usize = 64;

/// Number of rows of activations that a thread orders at a time.
const PIECE_TOKENS: usize = 8;

/// Returns the number of rows of activations above which weights are unpacked into tiles; it is
/// lower for formats that are slower to unpack.
fn few_tokens(format: QuantFormat) -> usize {
    if matches!(format.bits, 5 | 6) { 2 } else { 4 }
}

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

/// Order of the lines; a step is defined by [`Codes`].
#[derive(Clone, Copy)]
enum Order {
    /// `[tokens, steps, half, registers of a step]`.
    Few { token_lines: usize },
    /// `[tiles of tokens, steps, 16 * registers of a step, tokens of a tile, half]` of four bytes each.
    Tiles { token_lines: usize },
}

/// Returns whether the machine can unpack such codes: widths that cross bytes need VBMI.
pub(super) fn is_supported(format: QuantFormat) -> bool {
    matches!(format.bits, 2 | 4 | 8) || is_x86_feature_detected!("avx512vbmi")
}

impl Lines {
    pub(super) fn new(x: &Rounded, format: QuantFormat, threads: &Threads) -> Lines {
        if x.tokens <= few_tokens(format) {
            return RowLines::new(x, format, threads).into_few();
        }
        let proof = Avx512::detect().expect("`Threads` asserts its set");
        let token_lines = token_lines(x);
        let (mut lines, order) = empty_tiles(x);
        let pieces = lines.chunks_mut(tile::TOKENS * token_lines).enumerate().collect();
        threads.for_each(pieces, |(piece, lines): (usize, &mut [Line])| {
            let mut row_lines = vec![Line([0; LINE]); token_lines];
            let tokens = piece * tile::TOKENS..((piece + 1) * tile::TOKENS).min(x.tokens);
            for (slot, token) in tokens.enumerate() {
                let values = &x.values[token * x.input..][..x.input];
                with_codes(format, OrderRow { proof, values, lines: &mut row_lines });
                with_codes(format, tile::Interleave { x, from: &row_lines, slot, to: lines });
            }
        });
        Lines { proof, lines, order }
    }
}

/// Returns the number of lines of a row: two bytes, the halves, for each column.
fn token_lines(x: &Rounded) -> usize {
    x.padded_groups * x.group_size * 2 / LINE
}

/// Returns lines of zeros for all tiles of tokens, and their order.
fn empty_tiles(x: &Rounded) -> (Vec<Line>, Order) {
    let token_lines = token_lines(x);
    let tiles = x.tokens.div_ceil(tile::TOKENS);
    (vec![Line([0; LINE]); tiles * tile::TOKENS * token_lines], Order::Tiles { token_lines })
}

/// The lines of all rows, `[tokens, token_lines]`, of which products choose some.
pub(super) struct RowLines {
    proof: Avx512,
    lines: Vec<Line>,
    token_lines: usize,
}

impl RowLines {
    pub(super) fn new(x: &Rounded, format: QuantFormat, threads: &Threads) -> RowLines {
        let proof = Avx512::detect().expect("`Threads` asserts its set");
        let token_lines = token_lines(x);
        let mut lines = vec![Line([0; LINE]); x.tokens * token_lines];
        let pieces = lines.chunks_mut(PIECE_TOKENS * token_lines).enumerate().collect();
        threads.for_each(pieces, |(piece, lines): (usize, &mut [Line])| {
            for (idx, lines) in lines.chunks_mut(token_lines).enumerate() {
                let values = &x.values[(piece * PIECE_TOKENS + idx) * x.input..][..x.input];
                with_codes(format, OrderRow { proof, values, lines });
            }
        });
        RowLines { proof, lines, token_lines }
    }

    fn into_few(self) -> Lines {
        let RowLines { proof, lines, token_lines } = self;
        Lines { proof, lines, order: Order::Few { token_lines } }
    }

    /// Returns the lines for products with the rows of these indices, which `x` has.
    pub(super) fn choose(&self, rows: &[usize], x: &Rounded, format: QuantFormat) -> Lines {
        let RowLines { proof, token_lines, .. } = *self;
        let row_lines = |row: &usize| &self.lines[row * token_lines..(row + 1) * token_lines];
        if rows.len() <= few_tokens(format) {
            let lines = rows.iter().flat_map(row_lines).copied().collect();
            return RowLines { proof, lines, token_lines }.into_few();
        }
        let (mut lines, order) = empty_tiles(x);
        let tiles = lines.chunks_mut(tile::TOKENS * token_lines);
        for (rows, to) in rows.chunks(tile::TOKENS).zip(tiles) {
            for (slot, row) in rows.iter().enumerate() {
                with_codes(format, tile::Interleave { x, from: row_lines(row), slot, to });
            }
        }
        Lines { proof, lines, order }
    }
}

/// A computation that is compiled for the codes of each format; see [`with_codes`].
trait WithCodes {
    /// Runs with the format as types. A quantisation group fills `LANES` of the sixteen lanes of a
    /// register, so sixteen groups are `LANES` steps.
    fn run<C: Codes, const LANES: usize>(self);
}

/// Runs `work` compiled for the codes of `format`.
fn with_codes(format: QuantFormat, work: impl WithCodes) {
    match (format.mode, format.bits, format.group_size) {
        (QuantMode::Affine, 2, 32) => work.run::<Fields<2>, 2>(),
        (QuantMode::Affine, 2, 64) => work.run::<Fields<2>, 4>(),
        (QuantMode::Affine, 2, _) => work.run::<Fields<2>, 8>(),
        (QuantMode::Affine, 3, 32) => work.run::<Threes<32>, 4>(),
        (QuantMode::Affine, 3, 64) => work.run::<Threes<64>, 8>(),
        (QuantMode::Affine, 3, _) => work.run::<Threes<128>, 16>(),
        (QuantMode::Affine, 4, 32) => work.run::<Fields<4>, 4>(),
        (QuantMode::Affine, 4, 64) => work.run::<Fields<4>, 8>(),
        (QuantMode::Affine, 4, _) => work.run::<Fields<4>, 16>(),
        (QuantMode::Affine, 5, _) => with_wide_codes::<5>(format, work),
        (QuantMode::Affine, 6, _) => with_wide_codes::<6>(format, work),
        (QuantMode::Affine, ..) => with_wide_codes::<8>(format, work),
        (QuantMode::Nvfp4, ..) => work.run::<SignedNibbles, 2>(),
        _ => work.run::<SignedNibbles, 4>(),
    }
}

fn with_wide_codes<const BITS: usize>(format: QuantFormat, work: impl WithCodes) {
    match format.group_size {
        32 => work.run::<Wide<BITS, 1>, 8>(),
        64 => work.run::<Wide<BITS, 1>, 16>(),
        _ => work.run::<Wide<BITS, 2>, 16>(),
    }
}

/// Puts the halves of a row into lines `[steps, half, registers]`.
struct OrderRow<'a> {
    proof: Avx512,
    values: &'a [i16],
    lines: &'a mut [Line],
}

impl WithCodes for OrderRow<'_> {
    fn run<C: Codes, const LANES: usize>(self) {
        let Avx512 { .. } = self.proof;
        // SAFETY: the proof says that the machine has what the function is compiled for.
        unsafe { order_row::<C>(self.values, self.lines) }
    }
}

for_avx512! {
    fn order_row<C: Codes>(values: &[i16], lines: &mut [Line]) {
        let step_columns = LINE * C::REGISTERS;
        let steps = values.chunks(step_columns).zip(lines.chunks_exact_mut(2 * C::REGISTERS));
        for (values, lines) in steps {
            let mut padded = [0; 4 * LINE];
            padded[..values.len()].copy_from_slice(values);
            let (high, low) = lines.split_at_mut(C::REGISTERS);
            for register in 0..C::REGISTERS {
                let (high, low) = (&mut high[register].0, &mut low[register].0);
                for byte in 0..LINE {
                    (high[byte], low[byte]) = halves(padded[C::column(register, byte)]);
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
pub(super) fn multiply_rows<R: Results>(
    lines: &Lines,
    x: &Rounded,
    matrix: &QuantMatrix<'_>,
    rows: Range<usize>,
    out: &mut [R],
) {
    with_codes(matrix.format, Multiply { job: Job { lines, x, matrix, rows }, out });
}

/// See [`super::avx512_peak_macs`].
pub(super) fn peak_macs() -> usize {
    let Avx512 { .. } = Avx512::detect().expect("asked for by a pool of this set");
    // SAFETY: just detected.
    unsafe { peak() }
}

for_avx512! {
    fn peak() -> usize {
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
        // Two instructions, one for each half, compute 64 products.
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

struct Multiply<'a, R> {
    job: Job<'a>,
    out: &'a mut [R],
}

impl<R: Results> WithCodes for Multiply<'_, R> {
    fn run<C: Codes, const LANES: usize>(self) {
        let Multiply { job, out } = self;
        assert_eq!(job.x.group_size, LANES * 4 * C::REGISTERS, "lanes of a group");
        let Lines { proof: Avx512 { .. }, .. } = job.lines;
        match job.lines.order {
            // SAFETY: the proof says that the machine has what the functions are compiled for.
            Order::Few { token_lines } => unsafe {
                few::multiply::<C, R, LANES>(&job, token_lines, out);
            },
            // SAFETY: as above.
            Order::Tiles { token_lines } => unsafe {
                tile::multiply::<C, R, LANES>(&job, token_lines, out);
            },
        }
    }
}
