//! Rounding of vectors to the values of few bits, with scales for blocks of neighbouring elements. A vector's
//! result depends on its own elements alone.

/// To what elements are rounded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CodeFormat {
    /// E4M3, whose scales are powers of two.
    E4M3,
    /// E2M1, whose scales are powers of two.
    E2M1,
    /// E2M1, whose scales are of E4M3.
    E2M1InE4M3,
}

const E4M3_MAX: f32 = 448.0;
const E2M1_MAX: f32 = 6.0;
const MANTISSA_BITS: u32 = 23;
/// Exponents of the smallest normal numbers, as single precision has them.
const E4M3_MIN_EXPONENT: u32 = 127 - 6;
const E2M1_MIN_EXPONENT: u32 = 127;

impl CodeFormat {
    /// Returns the number of elements that share a scale.
    pub fn block_len(self) -> usize {
        match self {
            CodeFormat::E4M3 | CodeFormat::E2M1 => 32,
            CodeFormat::E2M1InE4M3 => 16,
        }
    }

    /// Returns the largest absolute value of a code, and the one that an element of a block has at least
    /// where its scale is chosen.
    pub fn bounds(self) -> (f32, f32) {
        match self {
            CodeFormat::E4M3 => (E4M3_MAX, 1e-4),
            CodeFormat::E2M1 => (E2M1_MAX, E2M1_MAX * f32::MIN_POSITIVE),
            CodeFormat::E2M1InE4M3 => (E2M1_MAX, E2M1_MAX / 512.0),
        }
    }

    /// Rounds vectors that follow one another.
    ///
    /// # Panics
    /// Panics if they have no whole number of blocks.
    #[track_caller]
    pub fn round(self, values: &mut [f32]) {
        assert!(values.len().is_multiple_of(self.block_len()), "whole blocks");
        let (max, least) = self.bounds();
        for block in values.chunks_exact_mut(self.block_len()) {
            let largest = block.iter().fold(least, |largest, value| largest.max(value.abs()));
            let scale = match self {
                CodeFormat::E4M3 | CodeFormat::E2M1 => power_above(largest * (1.0 / max)),
                CodeFormat::E2M1InE4M3 => nearest(largest / max, 3, E4M3_MIN_EXPONENT),
            };
            for value in block {
                let code = (*value / scale).clamp(-max, max);
                *value = scale
                    * match self {
                        CodeFormat::E4M3 => nearest(code, 3, E4M3_MIN_EXPONENT),
                        CodeFormat::E2M1 | CodeFormat::E2M1InE4M3 => {
                            nearest(code, 1, E2M1_MIN_EXPONENT)
                        }
                    };
            }
        }
    }
}

/// Returns the least power of two that is not less than a positive normal number.
fn power_above(value: f32) -> f32 {
    let bits = value.to_bits();
    let is_power = bits.is_multiple_of(1 << MANTISSA_BITS);
    f32::from_bits(((bits >> MANTISSA_BITS) + u32::from(!is_power)) << MANTISSA_BITS)
}

/// Rounds to `mantissa_bits` bits of mantissa, ties to even. `min_exponent` is the biased exponent
/// of the smallest normal number.
fn nearest(value: f32, mantissa_bits: u32, min_exponent: u32) -> f32 {
    let exponent = (value.abs().to_bits() >> MANTISSA_BITS).max(min_exponent);
    let step = f32::from_bits((exponent - mantissa_bits) << MANTISSA_BITS);
    (value / step).round_ties_even() * step
}
