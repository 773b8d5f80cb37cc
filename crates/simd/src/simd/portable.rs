//! The reference implementation: every other set must agree with it, except for fused
//! multiplication and addition.

use std::array;

use half::{bf16, f16};

use super::{InstructionSet, LANES, Lanes, Simd, code_shifts, e4m3};

/// Plain Rust code, without intrinsics, which every machine can execute.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

impl Simd for Portable {
    type Floats = Lanes;
    type Codes = [u32; LANES];

    const INSTRUCTIONS: InstructionSet = InstructionSet::Scalar;

    #[inline(always)]
    fn mul_add_scalar(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }

    #[inline(always)]
    fn load(self, from: &Lanes) -> Lanes {
        *from
    }

    #[inline(always)]
    fn store(self, values: Lanes, to: &mut Lanes) {
        *to = values;
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Lanes {
        [value; LANES]
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> Lanes {
        from.map(bf16::to_f32)
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> Lanes {
        from.map(f16::to_f32)
    }

    #[inline(always)]
    fn prefetch<T>(self, _from: &T, _offset: usize) {}

    #[inline(always)]
    fn mul(self, a: Lanes, b: Lanes) -> Lanes {
        array::from_fn(|lane| a[lane] * b[lane])
    }

    #[inline(always)]
    fn mul_add(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        array::from_fn(|lane| a[lane] * b[lane] + c[lane])
    }

    #[inline(always)]
    fn sum(self, [a, b, c, d, e, f, g, h]: Lanes) -> f32 {
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }

    #[inline(always)]
    fn codes<const BITS: usize>(self, low: u32, high: u32) -> [u32; LANES] {
        let shifts = const { code_shifts(BITS) };
        array::from_fn(|lane| {
            let piece = if BITS <= 4 || lane < 4 { low } else { high };
            (piece >> shifts[lane]) & ((1 << BITS) - 1)
        })
    }

    #[inline(always)]
    fn to_floats(self, codes: [u32; LANES]) -> Lanes {
        codes.map(|code| code as f32)
    }

    #[inline(always)]
    fn look_up(self, table: &[f32; 16], codes: [u32; LANES]) -> Lanes {
        codes.map(|code| table[code as usize & 15])
    }

    #[inline(always)]
    fn e4m3(self, low: u32, high: u32) -> Lanes {
        self.codes::<8>(low, high).map(e4m3)
    }
}
