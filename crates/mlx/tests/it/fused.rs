//! Compares fused and quantised operations with plain ones.

use jackalope_mlx::fast::{self, AttentionScores, Mask, RopeParameters};
use jackalope_mlx::quant::{self, Format, Mode};
use jackalope_mlx::{Array, Dtype};

use crate::panic_of;

/// A wave, so that no two rows are alike.
fn wave(shape: &[i32]) -> Array {
    let size = shape.iter().product();
    (Array::arange(size, Dtype::F32) * 0.37).sin().reshape(shape)
}

#[track_caller]
fn assert_close(found: &Array, expected: &Array, tolerance: f32) {
    assert_eq!(found.shape(), expected.shape());
    let error = found.sub(expected).abs().flatten(0, -1).max(0, false);
    let error = error.astype(Dtype::F32).item::<f32>().unwrap();
    assert!(error <= tolerance, "differs by {error}");
}

#[test]
fn norms_are_their_formulas() {
    let (x, weight, bias) = (wave(&[2, 8]), wave(&[8]), wave(&[8]) * 0.5);
    let rms = (x.square().mean(-1, true) + 1e-5).rsqrt();
    assert_close(&fast::rms_norm(&x, Some(&weight), 1e-5), &(&x * &rms * &weight), 1e-6);
    assert_close(&fast::rms_norm(&x, None, 1e-5), &(&x * &rms), 1e-6);
    let centred = &x - x.mean(-1, true);
    let deviation = (centred.square().mean(-1, true) + 1e-5).rsqrt();
    let expected = &centred * &deviation * &weight + &bias;
    assert_close(&fast::layer_norm(&x, Some(&weight), Some(&bias), 1e-5), &expected, 1e-5);
}

/// Rotation of the halves of `[rows, heads, 1, head_dim]`, with a position for each row.
fn rotated(x: &Array, positions: &Array, inverse_freqs: &Array) -> Array {
    let half = x.dim(-1) / 2;
    let angles = positions.reshape(&[-1, 1, 1, 1]) * inverse_freqs.reshape(&[1, -1]);
    let (cos, sin) = (angles.cos(), angles.sin());
    let (low, high) = (x.slice_axis(-1, 0, half), x.slice_axis(-1, half, 2 * half));
    Array::concatenate(&[&(&low * &cos - &high * &sin), &(&low * &sin + &high * &cos)], -1)
}

#[test]
fn rope_rotates_each_row_by_its_position() {
    let x = wave(&[3, 2, 1, 8]);
    let exponents = Array::arange(4, Dtype::F32) * -0.25;
    let inverse_freqs = Array::scalar(10_000.0).power(&exponents);
    let freqs = &(Array::scalar(1.0) / &inverse_freqs);
    let positions = &Array::from_slice(&[5, 900, 6], &[3]);
    let expected = rotated(&x, &positions.astype(Dtype::F32), &inverse_freqs);
    let all = RopeParameters { dims: 8, traditional: false, freqs, positions };
    assert_close(&fast::rope(&x, all), &expected, 1e-4);
    let few = &Array::from_slice(&[5, 900], &[2]);
    let (message, _) = panic_of(|| drop(fast::rope(&x, RopeParameters { positions: few, ..all })));
    assert!(message.starts_with("rope: [rope]"), "{message}");
}

#[test]
fn attention_is_a_softmax_over_the_keys_the_mask_leaves() {
    let (q, k, v) = (wave(&[1, 4, 3, 8]), wave(&[1, 2, 5, 8]), wave(&[1, 2, 5, 8]) * 0.5);
    let (k_each, v_each) = (k.repeat(2, 1), v.repeat(2, 1));
    let scores = q.matmul(&k_each.swapaxes(-1, -2)) * 0.35;
    // Query i of 3 stands at position i + 2 of 5.
    let rows = Array::arange_from(2, 5, Dtype::I32).reshape(&[3, 1]);
    let seen = rows.greater_equal(&Array::arange(5, Dtype::I32).reshape(&[1, 5]));
    let masked = Array::where_(&seen, &scores, &Array::scalar(f32::NEG_INFINITY));
    let attend = |mask| {
        let scores = AttentionScores { scale: 0.35, mask, sinks: None };
        fast::scaled_dot_product_attention(&q, &k, &v, scores)
    };
    assert_close(&attend(Mask::None), &scores.softmax(-1).matmul(&v_each), 1e-5);
    assert_close(&attend(Mask::Causal), &masked.softmax(-1).matmul(&v_each), 1e-5);
    assert_close(&attend(Mask::Array(&seen)), &masked.softmax(-1).matmul(&v_each), 1e-5);
    let sinks = Array::from_slice(&[0.5_f32, -1.0, 2.0, 0.0], &[4]);
    let column = sinks.reshape(&[1, 4, 1, 1]).broadcast_to(&[1, 4, 3, 1]);
    let shares = Array::concatenate(&[&masked, &column], -1).softmax(-1);
    let expected = shares.slice_axis(3, 0, 5).matmul(&v_each);
    let scores = AttentionScores { scale: 0.35, mask: Mask::Causal, sinks: Some(&sinks) };
    assert_close(&fast::scaled_dot_product_attention(&q, &k, &v, scores), &expected, 1e-5);
}

/// Returns all supported formats: mode, bits, group size.
fn formats() -> Vec<Format> {
    let affine = [2, 3, 4, 5, 6, 8].into_iter().flat_map(|bits| {
        [32, 64, 128].map(|group_size| Format { mode: Mode::Affine, bits, group_size })
    });
    let floating = [(Mode::Mxfp4, 4, 32), (Mode::Nvfp4, 4, 16), (Mode::Mxfp8, 8, 32)];
    let floating = floating.map(|(mode, bits, group_size)| Format { mode, bits, group_size });
    affine.chain(floating).collect()
}

#[test]
fn every_quantisation_multiplies_as_its_dequantised_matrix() {
    let (x, w) = (wave(&[3, 128]), wave(&[16, 128]));
    for format in formats() {
        let packed = quant::quantize(&w, format);
        assert_eq!(packed.words.shape(), [16, 128 * format.bits / 32], "{format:?}");
        assert_eq!(packed.words.dtype(), Dtype::U32, "{format:?}");
        assert_eq!(packed.scales.shape(), [16, 128 / format.group_size], "{format:?}");
        assert_eq!(packed.biases.is_some(), format.mode == Mode::Affine, "{format:?}");
        let plain = quant::dequantize(&packed, Dtype::F32);
        assert_eq!(plain.dtype(), Dtype::F32, "{format:?}");
        // A whole step of integers over [-1, 1], half a step of floats at their upper end.
        let step = match format.mode {
            Mode::Affine => 2.0 / 2_f32.powi(format.bits),
            Mode::Mxfp4 | Mode::Nvfp4 => 0.34,
            Mode::Mxfp8 => 0.04,
        };
        assert_close(&plain, &w, step);
        let product = quant::quantized_matmul(&x, &packed, true);
        assert_close(&product, &x.matmul(&plain.swapaxes(0, 1)), 1e-4);
    }
    let packed = quant::quantize(&w, Format { mode: Mode::Affine, bits: 4, group_size: 64 });
    let plain = quant::dequantize(&packed, Dtype::F32);
    let product = quant::quantized_matmul(&wave(&[3, 16]), &packed, false);
    assert_close(&product, &wave(&[3, 16]).matmul(&plain), 1e-4);
}

#[test]
fn each_row_is_multiplied_with_the_matrix_of_its_index() {
    let (x, w) = (wave(&[4, 1, 128]), wave(&[3, 16, 128]));
    for (indices, is_sorted) in [([2_u32, 0, 2, 1], false), ([0, 0, 1, 2], true)] {
        let indices_array = Array::from_slice(&indices, &[4]);
        let gather = quant::Gather { indices: &indices_array, is_sorted };
        let expected = |w: &Array| {
            let rows = indices.iter().enumerate().map(|(row, &idx)| {
                let row = i32::try_from(row).unwrap();
                let matrix = w.take(&Array::from_slice(&[idx], &[1]), 0).squeeze(0);
                x.slice_axis(0, row, row + 1).matmul(&matrix.swapaxes(0, 1))
            });
            let rows: Vec<Array> = rows.collect();
            Array::concatenate(&rows.iter().collect::<Vec<_>>(), 0)
        };
        assert_close(&quant::gather_matmul(&x, &w, gather), &expected(&w), 1e-4);
        for format in formats() {
            let packed = quant::quantize(&w, format);
            let plain = quant::dequantize(&packed, Dtype::F32);
            let product = quant::gather_quantized_matmul(&x, &packed, gather);
            assert_close(&product, &expected(&plain), 1e-4);
        }
    }
}
