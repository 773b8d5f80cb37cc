//! The norm of rows that are divided among machines.

use jackalope_kernels::{
    DividedNorm, Elements, GRID, SQUARE_SUMS, Threads, norm_divided, square_sums, square_total,
};

fn sum_of(row: &[f32]) -> [f64; SQUARE_SUMS] {
    square_sums(row, row.len(), &Threads::new(1))[0]
}

#[test]
fn the_sum_of_squares_has_the_same_bits_for_every_division() {
    let value = |idx: u32| {
        let unit = (idx.wrapping_mul(2_654_435_761) >> 8) as f32 / 16_777_216.0 - 0.5;
        unit * 10.0_f32.powi(i32::try_from(idx % 9).unwrap_or(0) - 4)
    };
    let row: Vec<f32> = (0..6000).map(value).collect();
    let whole = sum_of(&row);
    for cut in [1, 7, 100, 2999, 5999] {
        let (left, right) = row.split_at(cut);
        let (right, left) = (sum_of(right), sum_of(left));
        let parts: Vec<f64> = right.iter().zip(left).map(|(a, b)| a + b).collect();
        assert_eq!(parts, whole, "{cut}");
    }
    let plain: f64 = row.iter().map(|value| f64::from(*value).powi(2)).sum();
    assert!((square_total(&whole) - plain).abs() <= plain * 1e-12, "{whole:?}, {plain}");
}

#[test]
fn the_squares_of_small_numbers_count() {
    let row = [1e-4_f32; 4096];
    assert!((square_total(&sum_of(&row)) - 4096.0 * 1e-8).abs() < 1e-10);
}

#[test]
fn sums_are_on_the_grid_that_machines_add_exactly() {
    for magnitude in [1e-5_f32, 1e-2, 1.0, 300.0, 5e4] {
        let row: Vec<f32> = (0..1 << 14).map(|idx| magnitude / (1 + idx % 97) as f32).collect();
        for sum in sum_of(&row) {
            assert!(sum.abs() < 131_072.0 && (sum / GRID).fract() == 0.0, "{magnitude}: {sum}");
        }
    }
}

#[test]
fn rows_in_turn_have_weights_of_their_own() {
    let mut x = [3.0, 4.0, 5.0, 12.0, 6.0, 8.0, 10.0, 24.0];
    let threads = Threads::new(1);
    let sums = square_sums(&x, 2, &threads);
    let weight = [1.0, 2.0, 10.0, 20.0];
    let norm = DividedNorm { weight: Elements::F32(&weight), eps: 0.0, width: 2 };
    norm_divided(&mut x, &sums, norm, &threads);
    let root = 2.0_f32.sqrt();
    let expected = [0.6, 1.6, 50.0 / 13.0, 240.0 / 13.0].map(|value| value * root);
    for (found, expected) in x.iter().zip(expected.iter().cycle()) {
        assert!((found - expected).abs() < 1e-5, "{found}, not {expected}");
    }
}

#[test]
fn what_is_not_finite_stays_so() {
    for value in [f32::NAN, f32::INFINITY] {
        let sums = [sum_of(&[1.0, value])];
        let mut x = [1.0, value];
        let norm = DividedNorm { weight: Elements::F32(&[1.0, 1.0]), eps: 1e-5, width: 2 };
        norm_divided(&mut x, &sums, norm, &Threads::new(1));
        assert!(x[1].is_nan());
    }
}
