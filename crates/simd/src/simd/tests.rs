//! Compares each operation of each set with the portable one.

use super::{InstructionSet, InstructionSetError, LANES, Lanes, Portable, Simd, e4m3};
use crate::dispatched;

/// Runs every operation on the same data, and returns the bits of the results.
fn all_operations<S: Simd>(simd: S, out: &mut Vec<u32>) {
    let a: Lanes = [1.5, -2.25, 1e-30, 3e20, 0.0, -0.0, f32::INFINITY, 7.0];
    let b: Lanes = [0.1, 3.0, 1e-15, -3e20, 5.0, 1.0, 2.0, f32::NAN];
    let whole: Lanes = std::array::from_fn(|lane| (lane * lane) as f32 * 0.37);
    let mut push = |values: S::Floats| {
        let mut lanes = [0.0; LANES];
        simd.store(values, &mut lanes);
        out.extend(lanes.map(|lane| if lane.is_nan() { u32::MAX } else { lane.to_bits() }));
    };
    push(simd.load(&a));
    push(simd.splat(-3.25));
    push(simd.mul(simd.load(&a), simd.load(&b)));
    push(simd.splat(simd.sum(simd.load(&whole))));
    let four: [Lanes; 4] = std::array::from_fn(|idx| whole.map(|it| it * (idx as f32 + 0.3)));
    let mut vectors = [simd.splat(0.0); 4];
    for (vector, lanes) in vectors.iter_mut().zip(&four) {
        *vector = simd.load(lanes);
    }
    for sum in simd.sum_four(vectors) {
        push(simd.splat(sum));
    }
    // Without a rounding, so that fused and separate agree.
    push(simd.mul_add(simd.splat(3.0), simd.splat(0.5), simd.splat(0.25)));
    push(simd.splat(S::mul_add_scalar(3.0, 0.5, 0.25)));
    push(simd.mul_add(simd.load(&a), simd.splat(1.0), simd.splat(0.0)));
    let (low, high) = (0x9e37_79b9, 0x7f4a_7c15);
    let table = std::array::from_fn(|idx| idx as f32 - 7.5);
    push(simd.to_floats(simd.codes::<2>(low, high)));
    push(simd.to_floats(simd.codes::<3>(low, high)));
    push(simd.to_floats(simd.codes::<4>(low, high)));
    push(simd.to_floats(simd.codes::<5>(low, high)));
    push(simd.to_floats(simd.codes::<6>(low, high)));
    push(simd.to_floats(simd.codes::<8>(low, high)));
    push(simd.look_up(&table, simd.codes::<4>(low, high)));
    for code in (0..=255_u8).step_by(4) {
        let [low, high] =
            [[0, 1, 2, 3], [3, 2, 1, 0]].map(|offsets| offsets.map(|offset| code + offset));
        push(simd.e4m3(u32::from_le_bytes(low), u32::from_le_bytes(high)));
    }
}

dispatched! { fn run_all_operations(out: &mut Vec<u32>) = all_operations }

#[test]
fn every_set_computes_what_the_portable_one_does() {
    let mut expected = Vec::new();
    all_operations(Portable, &mut expected);
    for instructions in InstructionSet::available() {
        let mut bits = Vec::new();
        run_all_operations(instructions, &mut bits);
        assert_eq!(bits, expected, "{instructions:?}");
    }
}

#[test]
fn a_set_is_named_or_refused_with_a_hint() {
    for set in InstructionSet::available() {
        assert_eq!(set.name().parse(), Ok(set));
    }
    for set in InstructionSet::ALL.into_iter().filter(|set| !set.is_available()) {
        let error = set.name().parse::<InstructionSet>().expect_err("not available");
        assert_eq!(error, InstructionSetError::Unavailable(set));
    }
    let error = "sse9".parse::<InstructionSet>().expect_err("no such set").to_string();
    assert!(
        error.starts_with("no instruction set is called `sse9`\nhint: this machine has scalar")
    );
}

#[test]
fn codes_come_from_their_bits() {
    let codes = Portable.codes::<4>(0x8765_4321, 0);
    assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7, 8]);
    let codes = Portable.codes::<8>(0x0403_0201, 0x0807_0605);
    assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7, 8]);
    // Four codes of five bits in each half.
    let half = |codes: [u32; 4]| codes.iter().rev().fold(0, |bits, code| bits << 5 | code);
    let codes = Portable.codes::<5>(half([31, 0, 17, 4]), half([9, 30, 1, 2]));
    assert_eq!(codes, [31, 0, 17, 4, 9, 30, 1, 2]);
}

#[test]
fn eight_bit_floats_have_the_values_of_their_definition() {
    assert_eq!(
        [0x00, 0x01, 0x08, 0x38, 0x7e].map(e4m3),
        [0.0, 0.001_953_125, 0.015_625, 1.0, 448.0]
    );
    assert_eq!([0x81, 0xb8, 0xfe].map(e4m3), [-0.001_953_125, -1.0, -448.0]);
    assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
}
