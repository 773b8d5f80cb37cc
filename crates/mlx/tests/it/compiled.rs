//! Functions whose graphs MLX copies.

use std::cell::Cell;

use jackalope_mlx::quant::{self, Format, Mode, Quantized};
use jackalope_mlx::{Array, CompiledFunction, Dtype, count_nodes, host_counters};

use crate::panic_of;

/// `x` of `rows` rows of two elements, the first of them `first`.
fn rows(rows: i32, first: i32) -> Array {
    Array::arange_from(first, first + 2 * rows, Dtype::F32).reshape(&[rows, 2])
}

/// The weights that a function reads besides its inputs.
fn weights() -> Array {
    Array::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], &[2, 2])
}

fn doubled_sum(inputs: &[Array], weights: &Array) -> Vec<Array> {
    let product = inputs[0].matmul(weights);
    vec![product.add(&inputs[1]), &product * 2.0]
}

#[test]
fn a_function_computes_what_its_graph_does_and_builds_it_once_for_each_number_of_rows() {
    let (function, weights, built) = (CompiledFunction::default(), weights(), Cell::new(0));
    let offset = Array::from_slice(&[0.5_f32, -0.5], &[2]);
    let build = |inputs: &[Array]| {
        built.set(built.get() + 1);
        doubled_sum(inputs, &weights)
    };
    for (num_rows, first, built_so_far) in
        [(1, 0, 1), (1, 7, 1), (3, 2, 2), (1, 9, 2), (3, 4, 2), (64, 1, 3), (64, 2, 3)]
    {
        let x = rows(num_rows, first);
        let found = function.call(&[&x, &offset], build);
        let expected = doubled_sum(&[x, offset.clone()], &weights);
        assert_eq!(found.len(), 2);
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
        }
        assert_eq!(built.get(), built_so_far, "{num_rows} rows");
    }
    // Prompts have many numbers of rows.
    for built_so_far in [4, 5] {
        function.call(&[&rows(65, 0), &offset], build);
        assert_eq!(built.get(), built_so_far);
    }
}

#[test]
fn operations_with_several_outputs_are_copied() {
    let function = CompiledFunction::default();
    let format = Format { mode: Mode::Affine, bits: 4, group_size: 64 };
    let build = |inputs: &[Array]| {
        let Quantized { words, scales, biases, .. } = quant::quantize(&inputs[0], format);
        vec![biases.unwrap(), words, &scales * 2.0]
    };
    for seed in [1, 2, 3] {
        let x = Array::arange_from(seed, seed + 128, Dtype::F32).sin().reshape(&[2, 64]);
        let [found, expected] = [function.call(&[&x], build), build(&[x])];
        assert_eq!(found[1].to_vec::<u32>().unwrap(), expected[1].to_vec::<u32>().unwrap());
        for idx in [0, 2] {
            let [found, expected] = [&found, &expected].map(|it| it[idx].to_vec::<f32>().unwrap());
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn copies_of_graphs_count_as_many_operations() {
    let (function, weights) = (CompiledFunction::default(), weights());
    let (x, offset) = (rows(2, 0), Array::zeros(&[2], Dtype::F32));
    let counted = || {
        let before = host_counters().nodes;
        let outputs = function.call(&[&x, &offset], |inputs| doubled_sum(inputs, &weights));
        (host_counters().nodes - before, outputs)
    };
    let [(first, _), (second, _)] = [counted(), counted()];
    assert!(0 < first);
    assert_eq!(first, second);
    assert_eq!(
        count_nodes(|| counted().1),
        count_nodes(|| doubled_sum(&[x.clone(), offset.clone()], &weights))
    );
}

#[test]
fn a_panic_while_a_graph_is_built_reaches_the_caller_and_breaks_nothing() {
    let (function, weights) = (CompiledFunction::default(), weights());
    let (x, offset) = (rows(2, 0), Array::zeros(&[2], Dtype::F32));
    let (message, _) = panic_of(|| {
        function.call(&[&x, &offset], |inputs| vec![inputs[0].reshape(&[3])]);
    });
    assert!(message.starts_with("reshape: "), "{message}");
    let found = function.call(&[&x, &offset], |inputs| doubled_sum(inputs, &weights));
    assert_eq!(found[0].to_vec::<f32>().unwrap(), [3.0, 4.0, 11.0, 16.0]);
}
