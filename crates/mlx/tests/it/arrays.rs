//! Creating, describing, evaluating and reading arrays.

use half::{bf16, f16};
use jackalope_mlx::{Array, Dtype, Element, Error, async_eval, eval};

use crate::{panic_of, without_failures};

/// Checks that values are unchanged after writing and reading, for every element type.
fn check_round_trip<T: Element + PartialEq + std::fmt::Debug>(values: [T; 4]) {
    let array = Array::from_slice(&values, &[2, 2]);
    assert_eq!(array.dtype(), T::DTYPE);
    assert_eq!(array.nbytes(), 4 * T::DTYPE.size_bytes());
    assert_eq!(array.to_vec::<T>().unwrap(), values);
    // Also through a view with gaps: the second column.
    let column = array.slice(&[0, 1], &[2, 2]);
    assert_eq!(column.to_vec::<T>().unwrap(), [values[1], values[3]]);
}

#[test]
fn every_element_type_goes_in_and_comes_out_as_it_was() {
    check_round_trip([true, false, false, true]);
    check_round_trip([0_u8, 1, 2, u8::MAX]);
    check_round_trip([0_u16, 1, 2, u16::MAX]);
    check_round_trip([0_u32, 1, 2, u32::MAX]);
    check_round_trip([i32::MIN, -1, 0, i32::MAX]);
    check_round_trip([i64::MIN, -1, 0, i64::MAX]);
    check_round_trip([f16::MIN, f16::NEG_ONE, f16::EPSILON, f16::MAX]);
    check_round_trip([bf16::MIN, bf16::NEG_ONE, bf16::EPSILON, bf16::MAX]);
    check_round_trip([f32::MIN, -1.0, f32::EPSILON, f32::MAX]);
}

#[test]
fn an_array_is_described_without_being_computed() {
    let array = Array::zeros(&[2, 3, 4], Dtype::Bf16);
    assert_eq!(array.shape(), [2, 3, 4]);
    assert_eq!((array.ndim(), array.size(), array.nbytes()), (3, 24, 48));
    assert_eq!((array.dim(0), array.dim(-1)), (2, 4));
    assert_eq!(format!("{array:?}"), "Array[2, 3, 4] Bf16");
    let scalar = Array::scalar(1.5);
    assert_eq!((scalar.shape(), scalar.size()), (vec![], 1));
    assert_eq!(scalar.item::<f32>().unwrap(), 1.5);
}

#[test]
fn arrays_are_made_in_every_way_there_is() {
    let full = Array::full(&[3], 2.5, Dtype::F16);
    assert_eq!(full.to_vec::<f16>().unwrap(), [f16::from_f32(2.5); 3]);
    assert_eq!(Array::arange(3, Dtype::I32).to_vec::<i32>().unwrap(), [0, 1, 2]);
    assert_eq!(Array::arange_from(4, 6, Dtype::U32).to_vec::<u32>().unwrap(), [4, 5]);
    assert_eq!(Array::scalar_of(3.0, Dtype::I32).item::<i32>().unwrap(), 3);
    let filled = Array::from_bytes(&[2], Dtype::U16, |bytes| bytes.copy_from_slice(&[1, 0, 2, 0]));
    assert_eq!(filled.to_vec::<u16>().unwrap(), [1, 2]);
    let empty = Array::from_slice::<f32>(&[], &[0, 4]);
    assert_eq!((empty.size(), empty.to_vec::<f32>().unwrap()), (0, vec![]));
}

#[test]
fn a_clone_is_another_handle_to_the_same_node() {
    let array = Array::full(&[2], 1.0, Dtype::F32) + 1.0;
    let clone = array.clone();
    drop(array);
    assert_eq!(clone.to_vec::<f32>().unwrap(), [2.0; 2]);
}

#[test]
fn arrays_are_evaluated_together_or_ahead_of_time() {
    let (a, b) = (Array::scalar(1.0) + 1.0, Array::scalar(2.0) + 1.0);
    async_eval(&[&a, &b]).unwrap();
    eval(&[&a, &b]).unwrap();
    assert_eq!((a.item::<f32>().unwrap(), b.item::<f32>().unwrap()), (2.0, 3.0));
    eval(&[]).unwrap();
}

#[test]
fn a_wrong_use_panics_at_the_callers_line() {
    type Build = fn(&Array);
    let x = Array::zeros(&[2, 3], Dtype::F32);
    let cases: [(&str, u32, Build); 8] = [
        ("matmul: [matmul]", line!(), |x| drop(x.matmul(x))),
        ("reshape: [reshape]", line!(), |x| drop(x.reshape(&[5]))),
        ("add: [broadcast_shapes]", line!(), |x| drop(x + x.reshape(&[3, 2]))),
        ("dim: axis 2 of", line!(), |x| assert_eq!(x.dim(2), 0)),
        ("slice_axis: 0..4 of axis 1", line!(), |x| drop(x.slice_axis(1, 0, 4))),
        ("do not fill [2]", line!(), |_| drop(Array::from_slice(&[1.0_f32], &[2]))),
        ("a shape has a negative", line!(), |_| drop(Array::from_slice(&[1_u8], &[-1]))),
        ("split: Array split", line!(), |x| drop(x.split(2, 1))),
    ];
    for (part, at, build) in cases {
        let (message, line) = panic_of(|| build(&x));
        assert!(message.contains(part), "expected {part:?}, got {message:?}");
        assert_eq!(line, at, "{message}");
    }
}

#[test]
fn reading_another_element_type_is_an_error() {
    let err = Array::scalar(1.0).to_vec::<u32>().unwrap_err();
    assert_eq!(err, Error::WrongDtype { asked: Dtype::U32, found: Dtype::F32 });
}

#[test]
fn a_missing_file_is_an_error_that_names_it() {
    let err = Array::load("/nonexistent.npy").unwrap_err();
    assert!(matches!(&err, Error::Load { path, .. } if path == "/nonexistent.npy"), "{err}");
}

#[test]
fn the_library_is_the_pinned_one_and_computes_on_this_device() {
    assert_eq!(jackalope_mlx::version(), "0.32.4");
    let device = jackalope_mlx::device();
    assert_eq!(device == jackalope_mlx::Device::Gpu, jackalope_mlx::gpu_available());
    if !jackalope_mlx::gpu_available() {
        let err = jackalope_mlx::set_device(jackalope_mlx::Device::Gpu).unwrap_err();
        assert!(matches!(err, Error::Device { .. }), "{err}");
    }
    jackalope_mlx::set_device(device).unwrap();
}

#[test]
fn only_a_gpu_recommends_how_much_to_hold() {
    let recommended = jackalope_mlx::memory::recommended_bytes().unwrap();
    assert!(jackalope_mlx::gpu_available() || recommended == 0, "{recommended}");
}

#[test]
fn memory_is_counted_in_bytes() {
    use jackalope_mlx::memory;
    let _alone = without_failures();
    let bytes = 1 << 24;
    let array = Array::from_bytes(&[bytes], Dtype::U8, |memory| memory.fill(1));
    let bytes = usize::try_from(bytes).unwrap();
    assert!(memory::active_bytes() >= bytes);
    assert!(memory::peak_bytes() >= bytes);
    drop(array);
    let before = memory::set_cache_limit(0).unwrap();
    memory::clear_cache().unwrap();
    assert!(memory::cache_bytes() < bytes, "{}", memory::cache_bytes());
    memory::set_cache_limit(before).unwrap();
}

#[test]
fn pinned_values_outlive_the_array_and_are_read_by_other_threads() {
    let x = Array::arange(6, Dtype::F32).reshape(&[2, 3]);
    let (whole, view) = (x.pin().unwrap(), x.transpose(&[1, 0]).pin().unwrap());
    drop(x);
    let read = std::thread::spawn(move || (whole.values::<f32>().to_vec(), whole.dtype()));
    assert_eq!(read.join().unwrap(), (vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0], Dtype::F32));
    assert_eq!(view.clone().values::<f32>(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0], "in row order");
}

#[test]
#[should_panic(expected = "a kernel reads a buffer of F32 elements")]
fn pinned_values_are_read_only_as_their_own_type() {
    let pinned = Array::arange(6, Dtype::F32).pin().unwrap();
    pinned.values::<u32>();
}
