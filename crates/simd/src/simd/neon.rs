//! The baseline of 64-bit ARM: two registers of four lanes.
#![expect(unsafe_code, reason = "calling the intrinsics of the baseline, loads and stores")]

use std::arch::aarch64::*;

use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};

use super::{InstructionSet, LANES, Lanes, Simd, code_shifts};

/// NEON is part of every 64-bit ARM target of Rust's, so there is nothing to detect.
#[derive(Clone, Copy, Debug)]
pub struct Neon;

/// Lanes 0 to 3 and 4 to 7.
#[derive(Clone, Copy, Debug)]
pub struct Pair<T>(T, T);

/// Returns the counts of [`code_shifts`] for an instruction that shifts to the left: negated.
#[inline(always)]
const fn left_shifts(bits: usize) -> [i32; LANES] {
    let right = code_shifts(bits);
    let mut left = [0; LANES];
    let mut lane = 0;
    while lane < LANES {
        left[lane] = -(right[lane] as i32);
        lane += 1;
    }
    left
}

/// The values of four eight-bit floats.
#[inline]
#[target_feature(enable = "neon")]
fn e4m3(codes: uint32x4_t) -> float32x4_t {
    let magnitude = vandq_u32(codes, vdupq_n_u32(0x7f));
    let normal = vaddq_u32(vshlq_n_u32::<20>(magnitude), vdupq_n_u32(120 << 23));
    let subnormal = vmulq_n_f32(vcvtq_f32_u32(magnitude), 1.0 / 512.0);
    let is_subnormal = vcltq_u32(magnitude, vdupq_n_u32(8));
    let value = vbslq_u32(is_subnormal, vreinterpretq_u32_f32(subnormal), normal);
    // All bits set is not a number.
    let is_nan = vceqq_u32(magnitude, vdupq_n_u32(0x7f));
    let sign = vshlq_n_u32::<24>(veorq_u32(codes, magnitude));
    vreinterpretq_f32_u32(vorrq_u32(vorrq_u32(value, sign), is_nan))
}

impl Simd for Neon {
    type Floats = Pair<float32x4_t>;
    type Codes = Pair<uint32x4_t>;

    const INSTRUCTIONS: InstructionSet = InstructionSet::Neon;

    #[inline(always)]
    fn mul_add_scalar(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn load(self, from: &Lanes) -> Pair<float32x4_t> {
        // SAFETY: NEON is in the baseline; the reference covers twice four f32.
        unsafe { Pair(vld1q_f32(from.as_ptr()), vld1q_f32(from.as_ptr().add(4))) }
    }

    #[inline(always)]
    fn store(self, values: Pair<float32x4_t>, to: &mut Lanes) {
        // SAFETY: NEON is in the baseline; the reference covers twice four f32.
        unsafe {
            vst1q_f32(to.as_mut_ptr(), values.0);
            vst1q_f32(to.as_mut_ptr().add(4), values.1);
        }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Pair<float32x4_t> {
        // SAFETY: NEON is in the baseline.
        unsafe { Pair(vdupq_n_f32(value), vdupq_n_f32(value)) }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> Pair<float32x4_t> {
        // SAFETY: NEON is in the baseline; the reference covers eight halves.
        unsafe {
            let halves = vld1q_u16(from.as_ptr().cast());
            let low = vshlq_n_u32::<16>(vmovl_u16(vget_low_u16(halves)));
            let high = vshlq_n_u32::<16>(vmovl_u16(vget_high_u16(halves)));
            Pair(vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high))
        }
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> Pair<float32x4_t> {
        let mut values = [0.0; LANES];
        from.convert_to_f32_slice(&mut values);
        self.load(&values)
    }

    #[inline(always)]
    fn prefetch<T>(self, _from: &T, _offset: usize) {}

    #[inline(always)]
    fn mul(self, a: Pair<float32x4_t>, b: Pair<float32x4_t>) -> Pair<float32x4_t> {
        // SAFETY: NEON is in the baseline.
        unsafe { Pair(vmulq_f32(a.0, b.0), vmulq_f32(a.1, b.1)) }
    }

    #[inline(always)]
    fn mul_add(
        self,
        a: Pair<float32x4_t>,
        b: Pair<float32x4_t>,
        c: Pair<float32x4_t>,
    ) -> Pair<float32x4_t> {
        // SAFETY: NEON is in the baseline.
        unsafe { Pair(vfmaq_f32(c.0, a.0, b.0), vfmaq_f32(c.1, a.1, b.1)) }
    }

    #[inline(always)]
    fn sum(self, values: Pair<float32x4_t>) -> f32 {
        // SAFETY: NEON is in the baseline.
        unsafe {
            let four = vaddq_f32(values.0, values.1);
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }

    #[inline(always)]
    fn sum_four(self, vectors: [Pair<float32x4_t>; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        // SAFETY: NEON is in the baseline; four f32.
        unsafe {
            let [a, b, c, d] = vectors.map(|it| vreinterpretq_f64_f32(vaddq_f32(it.0, it.1)));
            let ab = vaddq_f32(
                vreinterpretq_f32_f64(vzip1q_f64(a, b)),
                vreinterpretq_f32_f64(vzip2q_f64(a, b)),
            );
            let cd = vaddq_f32(
                vreinterpretq_f32_f64(vzip1q_f64(c, d)),
                vreinterpretq_f32_f64(vzip2q_f64(c, d)),
            );
            vst1q_f32(sums.as_mut_ptr(), vpaddq_f32(ab, cd));
        }
        sums
    }

    #[inline(always)]
    fn codes<const BITS: usize>(self, low: u32, high: u32) -> Pair<uint32x4_t> {
        let shifts = const { &left_shifts(BITS) };
        // SAFETY: NEON is in the baseline; the reference covers twice four i32.
        unsafe {
            let mask = vdupq_n_u32((1 << BITS) - 1);
            let low = vdupq_n_u32(low);
            let high = if BITS <= 4 { low } else { vdupq_n_u32(high) };
            let low = vshlq_u32(low, vld1q_s32(shifts.as_ptr()));
            let high = vshlq_u32(high, vld1q_s32(shifts.as_ptr().add(4)));
            Pair(vandq_u32(low, mask), vandq_u32(high, mask))
        }
    }

    #[inline(always)]
    fn to_floats(self, codes: Pair<uint32x4_t>) -> Pair<float32x4_t> {
        // SAFETY: NEON is in the baseline.
        unsafe { Pair(vcvtq_f32_u32(codes.0), vcvtq_f32_u32(codes.1)) }
    }

    #[inline(always)]
    fn look_up(self, table: &[f32; 16], codes: Pair<uint32x4_t>) -> Pair<float32x4_t> {
        // SAFETY: NEON is in the baseline; the reference covers the 64 bytes of four registers.
        unsafe {
            let table = vld1q_u8_x4(table.as_ptr().cast());
            // Four bytes an entry: code `c` becomes the indices `4c, 4c + 1, 4c + 2, 4c + 3`.
            let entry = |codes| {
                let bytes = vmlaq_n_u32(vdupq_n_u32(0x0302_0100), codes, 0x0404_0404);
                vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(bytes)))
            };
            Pair(entry(codes.0), entry(codes.1))
        }
    }

    #[inline(always)]
    fn e4m3(self, low: u32, high: u32) -> Pair<float32x4_t> {
        let codes = self.codes::<8>(low, high);
        // SAFETY: NEON is in the baseline.
        unsafe { Pair(e4m3(codes.0), e4m3(codes.1)) }
    }
}
