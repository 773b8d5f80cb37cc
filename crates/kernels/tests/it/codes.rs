//! Rounding to codes of few bits.

use jackalope_kernels::CodeFormat;

const E4M3_MAX: f32 = 448.0;
const E2M1_MAX: f32 = 6.0;

/// Returns the value of each code up to the largest.
fn values(mantissa_bits: i32, bias: i32, max: f32) -> Vec<f32> {
    let steps = 1 << mantissa_bits;
    let of_code = |code: i32| {
        let (exponent, mantissa) = (code / steps, code % steps);
        match exponent {
            0 => mantissa as f32 * 2.0_f32.powi(1 - bias - mantissa_bits),
            _ => (steps + mantissa) as f32 * 2.0_f32.powi(exponent - bias - mantissa_bits),
        }
    };
    (0..).map(of_code).take_while(|value| *value <= max).collect()
}

#[test]
fn elements_become_the_nearest_values_of_their_format() {
    for (format, values) in
        [(CodeFormat::E4M3, values(3, 7, E4M3_MAX)), (CodeFormat::E2M1, values(1, 1, E2M1_MAX))]
    {
        let (max, _) = format.bounds();
        for idx in 0..2000 {
            // The largest value makes the scale 1.
            let mut block = vec![0.0; format.block_len()];
            block[0] = max;
            let value = max * (idx as f32 / 2000.0).powi(3);
            (block[1], block[2]) = (value, -value);
            format.round(&mut block);
            let distance = |it: &&f32| (**it - value).abs();
            let order = |a: &&f32, b: &&f32| distance(a).total_cmp(&distance(b));
            let best = values.iter().min_by(order).unwrap();
            assert_eq!(distance(&&block[1]), distance(&best), "{value} in {format:?}");
            assert_eq!((block[0], block[2]), (max, -block[1]));
        }
    }
}

#[test]
fn of_two_nearest_values_the_even_one_is_taken() {
    let mut block = [0.0; 32];
    block[..8].copy_from_slice(&[6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]);
    CodeFormat::E2M1.round(&mut block);
    assert_eq!(block[..8], [6.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]);
}

#[test]
fn scales_are_the_least_powers_of_two_or_the_nearest_values() {
    let mut block = [0.0; 32];
    (block[0], block[1]) = (12.1, 1.0);
    CodeFormat::E2M1.round(&mut block);
    // The scale is 4.
    assert_eq!(block[..2], [12.0, 0.0]);
    let mut block = [0.0; 16];
    (block[0], block[1]) = (12.1, 1.0);
    CodeFormat::E2M1InE4M3.round(&mut block);
    assert_eq!(block[..2], [12.0, 1.0]);
    // Nothing stays nothing.
    let mut block = [0.0; 64];
    for format in [CodeFormat::E4M3, CodeFormat::E2M1, CodeFormat::E2M1InE4M3] {
        format.round(&mut block);
        assert_eq!(block, [0.0; 64]);
    }
}
