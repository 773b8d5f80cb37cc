//! The exponential of soft-max and the hyperbolic tangent of its cap, in a form that vectorises and has the same bits
//! on every machine and width.

use crate::simd::Simd;

/// Argument below which the result is zero: its exponential is about the smallest normal f32.
const X_MIN: f32 = -87.3;

/// `e` to the power `x` for `x <= 0`, within two units in the last place; zero below [`X_MIN`], NaN for NaN.
///
/// Range reduction by powers of two and the polynomial of Cephes' `expf` (Moshier, `single/expf.c`).
#[inline(always)]
pub fn exp<S: Simd>(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let shifted = S::mul_add_scalar(x, std::f32::consts::LOG2_E, ROUND);
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits());
    let n = shifted - ROUND;
    let r = S::mul_add_scalar(n, -0.693_359_4, x);
    let r = S::mul_add_scalar(n, 2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = S::mul_add_scalar(p, r, coefficient);
    }
    let y = S::mul_add_scalar(p, r * r, r) + 1.0;
    let power = f32::from_bits(exponent.wrapping_add(127) << 23);
    if x < X_MIN { 0.0 } else { y * power }
}

/// The hyperbolic tangent, within a few units in the last place; NaN for NaN.
///
/// Near zero the polynomial of Cephes' `tanhf` (Moshier, `single/tanhf.c`), elsewhere from the exponential.
#[inline(always)]
pub fn tanh<S: Simd>(x: f32) -> f32 {
    let magnitude = x.abs();
    let power = exp::<S>(-2.0 * magnitude);
    let far = ((1.0 - power) / (1.0 + power)).copysign(x);
    let square = x * x;
    let mut p = -5.704_988_7e-3;
    for coefficient in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = S::mul_add_scalar(p, square, coefficient);
    }
    let near = S::mul_add_scalar(p * square, x, x);
    if magnitude < 0.625 { near } else { far }
}

#[cfg(test)]
mod tests {
    use super::{X_MIN, exp, tanh};
    use crate::dispatched;
    use crate::simd::{InstructionSet, Simd};

    fn exp_of<S: Simd>(_simd: S, values: &mut [f32]) {
        values.iter_mut().for_each(|value| *value = exp::<S>(*value));
    }

    dispatched! { fn exp_all(values: &mut [f32]) = exp_of }

    fn tanh_of<S: Simd>(_simd: S, values: &mut [f32]) {
        values.iter_mut().for_each(|value| *value = tanh::<S>(*value));
    }

    dispatched! { fn tanh_all(values: &mut [f32]) = tanh_of }

    #[test]
    fn tanh_agrees_with_double_precision_and_saturates() {
        let inputs: Vec<f32> = (-100_000..100_000).map(|step| step as f32 * 0.000_123).collect();
        for instructions in InstructionSet::available() {
            let mut values = inputs.clone();
            tanh_all(instructions, &mut values);
            for (x, value) in inputs.iter().zip(values) {
                let expected = f64::from(*x).tanh();
                let error = (f64::from(value) - expected).abs();
                assert!(
                    error <= 3.0 * f64::from(f32::EPSILON) * expected.abs(),
                    "tanh({x}) = {value}"
                );
            }
            let mut ends = [f32::INFINITY, f32::NEG_INFINITY, 3e38, -1e30, 0.0, f32::NAN];
            tanh_all(instructions, &mut ends);
            assert_eq!(ends[..5], [1.0, -1.0, 1.0, -1.0, 0.0]);
            assert!(ends[5].is_nan());
        }
    }

    #[test]
    fn exp_agrees_with_double_precision_over_its_range() {
        let inputs: Vec<f32> = (0..230_000).map(|step| step as f32 * -0.000_379).collect();
        for instructions in InstructionSet::available() {
            let mut values = inputs.clone();
            exp_all(instructions, &mut values);
            for (x, value) in inputs.iter().zip(values).filter(|(x, _)| **x > X_MIN) {
                let expected = f64::from(*x).exp();
                let error = (f64::from(value) - expected).abs() / expected;
                assert!(error < 2.0 * f64::from(f32::EPSILON), "exp({x}) = {value}");
            }
        }
    }

    #[test]
    fn exp_at_the_ends_is_exact() {
        for instructions in InstructionSet::available() {
            let mut values = [0.0, -0.0, -88.0, -1e30, f32::NEG_INFINITY, f32::NAN];
            exp_all(instructions, &mut values);
            assert_eq!(values[..5], [1.0, 1.0, 0.0, 0.0, 0.0]);
            assert!(values[5].is_nan());
        }
    }
}
