//! Checks shape, dtype and values of each operation once.

use jackalope_mlx::{Array, Dtype};

/// Checks the result of an operation; values are compared as f32, whatever the element type.
#[track_caller]
fn check(name: &str, result: &Array, shape: &[i32], dtype: Dtype, values: &[f32]) {
    assert_eq!(result.shape(), shape, "{name}: shape");
    assert_eq!(result.dtype(), dtype, "{name}: dtype");
    let found = result.astype(Dtype::F32).to_vec::<f32>().unwrap();
    assert_eq!(found.len(), values.len(), "{name}: {found:?}");
    for (found, expected) in found.iter().zip(values) {
        let close = (found - expected).abs() <= 1e-6 * expected.abs().max(1.0);
        assert!(close, "{name}: {found} is not {expected}");
    }
}

fn f32s(values: &[f32], shape: &[i32]) -> Array {
    Array::from_slice(values, shape)
}

/// `[[0, 1, 2], [3, 4, 5]]`
fn counting() -> Array {
    Array::arange(6, Dtype::F32).reshape(&[2, 3])
}

#[test]
fn operations_on_shapes_give_the_right_elements() {
    use Dtype::{F16, F32};
    let x = counting();
    check("astype", &x.astype(F16), &[2, 3], F16, &[0., 1., 2., 3., 4., 5.]);
    check("reshape", &x.reshape(&[3, -1]), &[3, 2], F32, &[0., 1., 2., 3., 4., 5.]);
    check("transpose", &x.transpose(&[1, 0]), &[3, 2], F32, &[0., 3., 1., 4., 2., 5.]);
    check("swapaxes", &x.swapaxes(-1, 0), &[3, 2], F32, &[0., 3., 1., 4., 2., 5.]);
    check("flatten", &x.flatten(0, -1), &[6], F32, &[0., 1., 2., 3., 4., 5.]);
    check("expand_dims", &x.expand_dims(1), &[2, 1, 3], F32, &[0., 1., 2., 3., 4., 5.]);
    let thin = x.expand_dims(1);
    check("squeeze", &thin.squeeze(1), &[2, 3], F32, &[0., 1., 2., 3., 4., 5.]);
    let row = f32s(&[1., 2.], &[2]);
    check("broadcast_to", &row.broadcast_to(&[2, 2]), &[2, 2], F32, &[1., 2., 1., 2.]);
    check("slice", &x.slice(&[0, 1], &[2, 3]), &[2, 2], F32, &[1., 2., 4., 5.]);
    check("slice_axis", &x.slice_axis(-1, 2, 3), &[2, 1], F32, &[2., 5.]);
    check("slice_axis, empty", &x.slice_axis(0, 1, 1), &[0, 3], F32, &[]);
    let updated = x.slice_update(&f32s(&[9., 8.], &[1, 2]), &[1, 0], &[2, 2]);
    check("slice_update", &updated, &[2, 3], F32, &[0., 1., 2., 9., 8., 5.]);
    check(
        "contiguous",
        &x.transpose(&[1, 0]).contiguous(),
        &[3, 2],
        F32,
        &[0., 3., 1., 4., 2., 5.],
    );
    check("concatenate", &Array::concatenate(&[&row, &row], 0), &[4], F32, &[1., 2., 1., 2.]);
    check("stack", &Array::stack(&[&row, &row], 1), &[2, 2], F32, &[1., 1., 2., 2.]);
    let columns = x.split(3, 1);
    assert_eq!(columns.len(), 3);
    check("split", &columns[2], &[2, 1], F32, &[2., 5.]);
    check("repeat", &row.repeat(2, 0), &[4], F32, &[1., 1., 2., 2.]);
}

#[test]
fn indexing_gives_the_named_elements() {
    let x = counting();
    let rows = Array::from_slice(&[1_u32, 0, 1], &[3]);
    check("take", &x.take(&rows, 0), &[3, 3], Dtype::F32, &[3., 4., 5., 0., 1., 2., 3., 4., 5.]);
    let columns = Array::from_slice(&[2_u32, 0], &[2, 1]);
    check("take_along_axis", &x.take_along_axis(&columns, 1), &[2, 1], Dtype::F32, &[2., 3.]);
    let large = x.greater(&Array::scalar(2.0));
    let chosen = Array::where_(&large, &x, &Array::scalar(-1.0));
    check("where", &chosen, &[2, 3], Dtype::F32, &[-1., -1., -1., 3., 4., 5.]);
}

#[test]
fn operations_on_two_arrays_work_element_by_element() {
    use Dtype::{Bool, F32};
    let (a, b) = (f32s(&[1., 2., 3.], &[3]), f32s(&[4., 2., 0.5], &[3]));
    check("add", &a.add(&b), &[3], F32, &[5., 4., 3.5]);
    check("sub", &a.sub(&b), &[3], F32, &[-3., 0., 2.5]);
    check("mul", &a.mul(&b), &[3], F32, &[4., 4., 1.5]);
    check("div", &a.div(&b), &[3], F32, &[0.25, 1., 6.]);
    check("power", &a.power(&b), &[3], F32, &[1., 4., 3_f32.sqrt()]);
    check("maximum", &a.maximum(&b), &[3], F32, &[4., 2., 3.]);
    check("minimum", &a.minimum(&b), &[3], F32, &[1., 2., 0.5]);
    check("greater", &a.greater(&b), &[3], Bool, &[0., 0., 1.]);
    check("greater_equal", &a.greater_equal(&b), &[3], Bool, &[0., 1., 1.]);
    check("less", &a.less(&b), &[3], Bool, &[1., 0., 0.]);
    check("less_equal", &a.less_equal(&b), &[3], Bool, &[1., 1., 0.]);
    check("equal", &a.equal(&b), &[3], Bool, &[0., 1., 0.]);
    let (low, high) = (a.less(&b), a.equal(&b));
    check("logical_or", &low.logical_or(&high), &[3], Bool, &[1., 1., 0.]);
    check("logical_and", &low.logical_and(&high), &[3], Bool, &[0., 0., 0.]);
    let square = f32s(&[1., 2., 3., 4.], &[2, 2]);
    check("matmul", &square.matmul(&square), &[2, 2], F32, &[7., 10., 15., 22.]);
}

#[test]
fn operators_are_the_operations_and_numbers_keep_the_element_type() {
    let x = f32s(&[1., 2.], &[2]).astype(Dtype::Bf16);
    let y = x.clone();
    check("&a + &b", &(&x + &y), &[2], Dtype::Bf16, &[2., 4.]);
    check("a - &b", &(x.clone() - &y), &[2], Dtype::Bf16, &[0., 0.]);
    check("&a * b", &(&x * y.clone()), &[2], Dtype::Bf16, &[1., 4.]);
    check("a / b", &(x.clone() / y), &[2], Dtype::Bf16, &[1., 1.]);
    check("&a * 2", &(&x * 2.0), &[2], Dtype::Bf16, &[2., 4.]);
    check("a + 1", &(x.clone() + 1.0), &[2], Dtype::Bf16, &[2., 3.]);
    check("-&a", &-&x, &[2], Dtype::Bf16, &[-1., -2.]);
}

#[test]
fn operations_on_one_array_are_the_functions_of_their_name() {
    type Function = fn(f32) -> f32;
    let values = [0.25_f32, 1.0, 2.0];
    let x = f32s(&values, &[3]);
    let sigmoid = |v: f32| 1.0 / (1.0 + (-v).exp());
    let cases: [(&str, Array, Function); 13] = [
        ("neg", x.neg(), |v| -v),
        ("abs", x.neg().abs(), |v| v),
        ("exp", x.exp(), f32::exp),
        ("log", x.log(), f32::ln),
        ("sin", x.sin(), f32::sin),
        ("cos", x.cos(), f32::cos),
        ("tanh", x.tanh(), f32::tanh),
        ("square", x.square(), |v| v * v),
        ("sqrt", x.sqrt(), f32::sqrt),
        ("rsqrt", x.rsqrt(), |v| 1.0 / v.sqrt()),
        ("sigmoid", x.sigmoid(), sigmoid),
        ("silu", x.silu(), |v| v / (1.0 + (-v).exp())),
        ("astype to itself", x.astype(Dtype::F32), |v| v),
    ];
    for (name, result, function) in cases {
        check(name, &result, &[3], Dtype::F32, &values.map(function));
    }
    check("erf", &x.erf(), &[3], Dtype::F32, &[0.276_326_4, 0.842_700_8, 0.995_322_3]);
    let not = x.greater(&Array::scalar(0.5)).logical_not();
    check("logical_not", &not, &[3], Dtype::Bool, &[1., 0., 0.]);
}

#[test]
fn operations_along_an_axis_reduce_that_axis() {
    use Dtype::{F32, U32};
    let x = f32s(&[1., 5., 3., 2., 4., 9.], &[2, 3]);
    check("sum", &x.sum(1, false), &[2], F32, &[9., 15.]);
    check("sum, kept", &x.sum(0, true), &[1, 3], F32, &[3., 9., 12.]);
    check("mean", &x.mean(-1, true), &[2, 1], F32, &[3., 5.]);
    check("max", &x.max(1, false), &[2], F32, &[5., 9.]);
    check("min", &x.min(1, false), &[2], F32, &[1., 2.]);
    check("argmax", &x.argmax(1), &[2], U32, &[1., 2.]);
    check("cumsum", &x.cumsum(1), &[2, 3], F32, &[1., 6., 9., 2., 6., 15.]);
    check("argsort", &x.argsort(1), &[2, 3], U32, &[0., 2., 1., 0., 1., 2.]);
    let kth = x.argpartition(2, 1).slice_axis(1, 2, 3);
    check("argpartition", &kth, &[2, 1], U32, &[1., 2.]);
    let flat = f32s(&[0., 0.], &[1, 2]);
    check("logsumexp", &flat.logsumexp(1, false), &[1], F32, &[2_f32.ln()]);
    check("softmax", &flat.softmax(-1), &[1, 2], F32, &[0.5, 0.5]);
}
