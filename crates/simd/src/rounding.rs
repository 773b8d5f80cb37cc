//! Groups of activations as 16-bit integers.
//!
//! The unit of a group is the power of two `u` with `max |x| <= 32639 * u` and `max |x| > 32639 / 2 * u`; then
//! `q = x / u` to the nearest integer, ties to even. So the error of an element is at most `u / 2`, below
//! `max |x| / 32639`. Because the unit is a power of two, an element is *exact* when its last significant bit is worth
//! `u` or more: every bf16 of at least a 128th of its group's maximum, and every f16 of at least a 16th (f16 has
//! three bits more). The bound 32639 = 127 * 256 + 127 lets `q` be cut into two signed bytes, `q = 256 * h + l`.
//!
//! A group cannot be rounded if an element is not finite or its maximum is beyond `2^±100`.

/// The largest `q`.
const Q_MAX: f32 = 32639.0;

/// Bits of the smallest and largest maximum of a group: `2^-100` and `2^100`.
const MAX_BITS_LOW: u32 = (127 - 100) << 23;
const MAX_BITS_HIGH: u32 = (127 + 100) << 23;

/// Rounds the group `x` to `q`, of the same length. Returns the unit, the sum of the rounded values, and
/// whether the group could be rounded; if not, `q` is zero.
#[inline(always)]
pub fn round_group(x: &[f32], q: &mut [i16]) -> (f32, i32, bool) {
    // Magnitudes have the same order as their bits, and NaN is above infinity.
    let max_bits = x.iter().fold(0, |max, x| (x.to_bits() & 0x7fff_ffff).max(max));
    if max_bits == 0 {
        q.fill(0);
        return (0.0, 0, true);
    }
    if !(MAX_BITS_LOW..=MAX_BITS_HIGH).contains(&max_bits) {
        q.fill(0);
        return (0.0, 0, false);
    }
    // A maximum of `m * 2^e`, `1 <= m < 2`, has the unit `2^(e - 14)`, or twice that for the few `m` just below two.
    let raised = f32::from_bits(max_bits) * (32768.0 / Q_MAX);
    let exponent = raised.to_bits() >> 23;
    let unit = f32::from_bits((exponent - 14) << 23);
    let inverse = f32::from_bits((254 + 14 - exponent) << 23);
    // Adding 1.5 * 2^23 rounds to an integer, ties to even, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let mut total = 0;
    for (x, q) in x.iter().zip(q) {
        let rounded = (x * inverse + ROUND).to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
        *q = rounded as i16;
        total += rounded;
    }
    (unit, total, true)
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::{Q_MAX, round_group};

    /// Checks one group: the range, the error, and which values are exact.
    fn check(x: &[f32], exact_share: f32) {
        let mut q = vec![0; x.len()];
        let (unit, total, is_ordinary) = round_group(x, &mut q);
        assert!(is_ordinary);
        assert_eq!(total, q.iter().map(|q| i32::from(*q)).sum::<i32>());
        let max = x.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
        for (x, q) in x.iter().zip(q) {
            assert!(f32::from(q).abs() <= Q_MAX, "{x} became {q}");
            let error = (f32::from(q) * unit - x).abs();
            assert!(error <= unit / 2.0 && unit * Q_MAX <= 2.0 * max, "{x} is {q} times {unit}");
            assert!(error == 0.0 || x.abs() < max / exact_share, "{x} of {max} was rounded");
        }
    }

    #[test]
    fn every_maximum_fits_and_large_values_are_exact() {
        for bits in 0x3f00..0x4100_u16 {
            let max = bf16::from_bits(bits);
            let smaller = (0..128).map(|less| -bf16::from_bits(bits - 7 * less).to_f32());
            check(&[max.to_f32()].into_iter().chain(smaller).collect::<Vec<_>>(), 128.0);
        }
        for bits in (0x3000..0x7c00_u16).step_by(3) {
            let max = f16::from_bits(bits);
            let smaller = (0..128).map(|less| f16::from_bits(bits - 90 * less).to_f32());
            check(&[-max.to_f32()].into_iter().chain(smaller).collect::<Vec<_>>(), 16.0);
        }
    }

    #[test]
    fn what_cannot_be_rounded_is_left_to_the_exact_path() {
        for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e31, 1e-31, 1e-40] {
            assert!(!round_group(&[0.0, strange], &mut [0; 2]).2, "{strange}");
        }
        assert_eq!(round_group(&[0.0, -0.0], &mut [1; 2]), (0.0, 0, true));
        assert!(round_group(&[1e-40, 1.0], &mut [0; 2]).2);
    }
}
