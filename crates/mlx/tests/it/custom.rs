//! Custom kernels: Rust closures as graph nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jackalope_mlx::{Array, ArrayType, Buffer, BufferMut, Dtype, Error, custom, eval};

use crate::expecting_failures;

/// Adds up all inputs, element by element.
fn sum_kernel(inputs: &[Buffer<'_>], outputs: &mut [BufferMut<'_>]) {
    let total = outputs[0].values_mut::<f32>();
    total.fill(0.0);
    for input in inputs {
        for (total, value) in total.iter_mut().zip(input.values::<f32>()) {
            *total += value;
        }
    }
}

fn array_type(shape: &[i32], dtype: Dtype) -> ArrayType {
    ArrayType { shape: shape.to_vec(), dtype }
}

#[test]
fn a_kernel_computes_inside_a_graph() {
    let x = Array::arange(6, Dtype::F32).reshape(&[2, 3]) + 1.0;
    let summed = custom(&[&x, &x], &[array_type(&[2, 3], Dtype::F32)], "sum", sum_kernel);
    let result = &summed[0] * 10.0;
    assert_eq!(result.shape(), [2, 3]);
    assert_eq!(result.to_vec::<f32>().unwrap(), [20., 40., 60., 80., 100., 120.]);
}

#[test]
fn a_kernel_sees_views_in_row_order() {
    let x = Array::arange(24, Dtype::F32).reshape(&[2, 3, 4]);
    let views = [
        x.transpose(&[2, 0, 1]),
        x.slice(&[0, 1, 1], &[2, 3, 3]),
        x.slice_axis(0, 1, 2).broadcast_to(&[2, 3, 4]),
        x.reshape(&[4, 6]).slice_axis(0, 1, 3),
    ];
    for view in views {
        let shape = view.shape();
        let copied = custom(&[&view], &[array_type(&shape, Dtype::F32)], "copy", sum_kernel);
        assert_eq!(copied[0].to_vec::<f32>().unwrap(), view.to_vec::<f32>().unwrap(), "{shape:?}");
    }
}

#[test]
fn a_kernel_has_several_outputs_and_knows_their_shapes() {
    let x = Array::from_slice(&[3_u32, 1, 2], &[3]);
    let outputs = [
        array_type(&[1], Dtype::U32),
        array_type(&[0, 7], Dtype::F32),
        array_type(&[3], Dtype::Bool),
    ];
    let results = custom(&[&x], &outputs, "facts", |inputs, outputs| {
        assert_eq!((inputs[0].shape(), inputs[0].dtype()), (&[3][..], Dtype::U32));
        assert_eq!((outputs[1].shape(), outputs[1].dtype()), (&[0, 7][..], Dtype::F32));
        assert!(outputs[1].values_mut::<f32>().is_empty());
        let values = inputs[0].values::<u32>();
        outputs[0].values_mut::<u32>()[0] = values.iter().sum();
        for (odd, value) in outputs[2].bytes_mut().iter_mut().zip(values) {
            *odd = u8::from(value % 2 == 1);
        }
    });
    eval(&results.iter().collect::<Vec<_>>()).unwrap();
    assert_eq!(results[0].to_vec::<u32>().unwrap(), [6]);
    assert_eq!(results[2].to_vec::<bool>().unwrap(), [true, true, false]);
}

#[test]
fn a_panic_inside_a_kernel_is_an_error_and_the_process_goes_on() {
    let _turn = expecting_failures();
    let x = Array::full(&[4], 1.0, Dtype::F32);
    for _ in 0..3 {
        let failing =
            custom(&[&x], &[array_type(&[4], Dtype::F32)], "fragile", |_, _| panic!("no luck"));
        let after = custom(&[&failing[0]], &[array_type(&[4], Dtype::F32)], "sum", sum_kernel);
        let err = (&after[0] + 1.0).eval().unwrap_err();
        let Error::Evaluation { message } = &err else { panic!("{err}") };
        assert!(message.contains("fragile: panicked: no luck"), "{message}");
        // Nothing of the failure is left behind for the next evaluation.
        let fine = custom(&[&x, &x], &[array_type(&[4], Dtype::F32)], "sum", sum_kernel);
        assert_eq!(fine[0].to_vec::<f32>().unwrap(), [2.0; 4]);
    }
}

#[test]
fn a_graph_that_fails_everywhere_leaves_no_error_behind() {
    let _turn = expecting_failures();
    let x = Array::full(&[4], 1.0, Dtype::F32);
    let output = [array_type(&[4], Dtype::F32)];
    for round in 0..20 {
        // Enough nodes that the first ones fail while the last ones are still being handed out.
        let mut last = x.clone();
        for _ in 0..500 {
            last = custom(&[&last], &output, "fragile", |inputs, _| {
                let _ = inputs[0].values::<u32>();
            })
            .remove(0);
        }
        assert!(last.eval().is_err());
        assert_eq!((&x + 1.0).to_vec::<f32>(), Ok(vec![2.0; 4]), "round {round}");
    }
}

#[test]
fn reading_a_buffer_as_another_type_is_an_error() {
    let _turn = expecting_failures();
    let x = Array::full(&[4], 1.0, Dtype::F32);
    let wrong = custom(&[&x], &[array_type(&[4], Dtype::F16)], "wrong", |inputs, _| {
        let _ = inputs[0].values::<u32>();
    });
    let message = wrong[0].eval().unwrap_err().to_string();
    assert!(message.contains("a kernel reads a buffer of F32 elements"), "{message}");
}

#[test]
fn a_kernel_runs_once_and_is_dropped_with_its_node() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&runs);
    let count = move |_: &[Buffer<'_>], outputs: &mut [BufferMut<'_>]| {
        counter.fetch_add(1, Ordering::SeqCst);
        outputs[0].values_mut::<f32>()[0] = 1.0;
    };
    let node = custom(&[], &[array_type(&[1], Dtype::F32)], "count", count);
    assert_eq!(runs.load(Ordering::SeqCst), 0, "building computes nothing");
    node[0].eval().unwrap();
    node[0].eval().unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    drop(node);
    // The worker may still hold the task it has finished; a later task waits for it.
    Array::scalar(1.0).add(&Array::scalar(1.0)).eval().unwrap();
    assert_eq!(Arc::strong_count(&runs), 1, "the closure is gone");
}
