//! MLX's fused operations.

use std::ops::Range;

use crate::array::{Array, built, built_all, optional, refs};
use crate::dtype::{ArrayType, Dtype};
use crate::ffi::bridge::{self, OutputSpec};

/// Applies root-mean-square normalisation over the last dimension.
#[track_caller]
pub fn rms_norm(x: &Array, weight: Option<&Array>, eps: f32) -> Array {
    built("rms_norm", bridge::rms_norm(&x.0, &optional(weight), eps))
}

/// Applies layer normalisation over the last dimension.
#[track_caller]
pub fn layer_norm(x: &Array, weight: Option<&Array>, bias: Option<&Array>, eps: f32) -> Array {
    built("layer_norm", bridge::layer_norm(&x.0, &optional(weight), &optional(bias), eps))
}

/// The parameters of [`rope`].
#[derive(Debug, Clone, Copy)]
pub struct RopeParameters<'a> {
    /// Number of elements of each head that are rotated, the first ones.
    pub dims: i32,
    /// Whether pairs are neighbouring elements, instead of one element from each half.
    pub traditional: bool,
    /// Positions per radian, f32 `[dims / 2]`.
    pub freqs: &'a Array,
    /// Position of each row, i32 `[rows]`.
    pub positions: &'a Array,
}

/// Applies rotary position embedding to `x` `[rows, heads, 1, head_dim]`.
#[track_caller]
pub fn rope(x: &Array, rope: RopeParameters<'_>) -> Array {
    let RopeParameters { dims, traditional, freqs, positions } = rope;
    built("rope", bridge::rope(&x.0, dims, traditional, &freqs.0, &positions.0))
}

/// The keys that a query sees.
#[derive(Debug, Clone, Copy)]
pub enum Mask<'a> {
    /// All keys.
    None,
    /// The keys up to the query's own position; the last query is at the last key's position.
    Causal,
    /// An array that is added to the scores, or, if boolean, is true for the keys that a query
    /// sees.
    Array(&'a Array),
}

/// The scores of attention's soft-max.
#[derive(Debug, Clone, Copy)]
pub struct AttentionScores<'a> {
    /// Factor of the products of queries and keys.
    pub scale: f32,
    /// The keys that a query sees.
    pub mask: Mask<'a>,
    /// Scores that take part in the soft-max without having a value, one for each head, `[heads]`, in
    /// the type of the queries.
    pub sinks: Option<&'a Array>,
}

/// Computes `softmax(scale * q kᵀ + mask) v` with `q` `[batch, heads, seq, head_dim]` and `k`, `v`
/// `[batch, kv_heads, seq, head_dim]`; `heads` must be a multiple of `kv_heads`.
#[track_caller]
pub fn scaled_dot_product_attention(
    q: &Array,
    k: &Array,
    v: &Array,
    scores: AttentionScores<'_>,
) -> Array {
    let (mode, array) = match scores.mask {
        Mask::None => ("", None),
        Mask::Causal => ("causal", None),
        Mask::Array(array) => ("array", Some(array)),
    };
    let [mask, sinks] = [array, scores.sinks].map(optional);
    let node = bridge::attention(&refs(&[q, k, v]), scores.scale, mode, &mask, &sinks);
    built("scaled_dot_product_attention", node)
}

/// Computes the gated delta rule with MLX's kernel, which exists for Metal and some shapes; elsewhere MLX
/// builds nodes for every token. `q`, `k` are `[batch, seq, key_heads, key_dim]`, `v` `[batch, seq,
/// value_heads, value_dim]`, `decays` and `rates` `[batch, seq, value_heads]`, the state `[batch,
/// value_heads, value_dim, key_dim]`. Returns the results in the shape of `v`, and the state after them.
#[track_caller]
pub fn gated_delta_update(
    qkv: [&Array; 3],
    decays: &Array,
    rates: &Array,
    state: &Array,
) -> [Array; 2] {
    let [q, k, v] = qkv;
    let inputs = refs(&[q, k, v, decays, rates, state]);
    let outputs = built_all("gated_delta_update", bridge::gated_delta_update(&inputs));
    outputs.try_into().expect("a recurrence has results and a state")
}

/// A kernel for GPUs in Metal or CUDA, compiled by MLX when it is first used.
#[derive(Debug, Clone, Copy)]
pub struct GpuKernel<'a> {
    /// Name of the kernel; each source needs a name of its own.
    pub name: &'a str,
    /// Names of the inputs in the source.
    pub inputs: &'a [&'a str],
    /// Names of the outputs in the source.
    pub outputs: &'a [&'a str],
    /// Body of the kernel's function.
    pub source: &'a str,
    /// Source code before the kernel's function.
    pub header: &'a str,
    /// Name and value of each constant in the source.
    pub constants: &'a [(&'a str, i32)],
}

/// The outputs of a kernel and the threads that compute them.
#[derive(Debug, Clone, Copy)]
pub struct KernelOutputs<'a> {
    /// Shape and element type of each output.
    pub types: &'a [ArrayType],
    /// Number of threads in each direction.
    pub grid: [i32; 3],
    /// Number of threads of a thread group in each direction.
    pub group: [i32; 3],
}

/// Applies a kernel to row-contiguous copies of its inputs. The evaluation fails unless MLX
/// computes on a GPU, of the kind for which the source is written.
#[track_caller]
pub fn gpu_kernel(
    kernel: &GpuKernel<'_>,
    inputs: &[&Array],
    outputs: &KernelOutputs<'_>,
) -> Vec<Array> {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let (constant_names, constant_values): (Vec<&str>, Vec<i32>) =
        kernel.constants.iter().copied().unzip();
    let spec = bridge::GpuKernelSpec {
        name: kernel.name,
        inputs: owned(kernel.inputs),
        outputs: owned(kernel.outputs),
        source: kernel.source,
        header: kernel.header,
        constant_names: owned(&constant_names),
        constant_values: &constant_values,
        grid: outputs.grid,
        group: outputs.group,
    };
    let types = outputs.types.iter();
    let types: Vec<OutputSpec<'_>> =
        types.map(|it| OutputSpec { shape: &it.shape, dtype: it.dtype.code() }).collect();
    built_all(kernel.name, bridge::gpu_kernel(&spec, &refs(inputs), &types))
}

/// Computes attention by calling `attend` for at most `rows_max` queries at a time, with the keys
/// and values up to the last of these queries, and with their range among all queries. `q` belongs
/// to the last positions of `k` and `v`.
#[track_caller]
pub fn by_queries(
    qkv: [&Array; 3],
    rows_max: i32,
    attend: impl Fn([&Array; 3], Range<usize>) -> Array,
) -> Array {
    let [q, k, v] = qkv;
    let (num_queries, num_keys) = (q.dim(2), k.dim(2));
    if num_queries <= rows_max {
        return attend(qkv, 0..num_queries as usize);
    }
    let blocks = (0..num_queries).step_by(rows_max as usize).map(|start| {
        let stop = num_queries.min(start + rows_max);
        let last_key = num_keys - num_queries + stop;
        let q = q.slice_axis(2, start, stop);
        let [k, v] = [k, v].map(|x| x.slice_axis(2, 0, last_key));
        attend([&q, &k, &v], start as usize..stop as usize)
    });
    let blocks: Vec<Array> = blocks.collect();
    Array::concatenate(&blocks.iter().collect::<Vec<_>>(), 2)
}

/// Computes attention whose scaled scores become `cap * tanh(score / cap)`. Consists of several
/// operations, because MLX has no fused one.
#[track_caller]
pub fn capped_attention(qkv: [&Array; 3], scale: f32, cap: f32, mask: Mask<'_>) -> Array {
    let [q, k, v] = qkv;
    // MLX has no fused operation for capped scores.
    let (batch, heads, kv_heads, seq) = (q.dim(0), q.dim(1), k.dim(1), q.dim(2));
    let grouped = (q * scale).reshape(&[batch, kv_heads, heads / kv_heads, seq, q.dim(3)]);
    let [k, v] = [k, v].map(|x| x.expand_dims(2));
    let products = grouped.matmul(&k.swapaxes(-1, -2)).astype(Dtype::F32);
    let capped = &(&products * (1.0 / cap)).tanh() * cap;
    let mask = match mask {
        Mask::None => None,
        Mask::Causal => Some(causal_mask(seq, k.dim(3))),
        // This mask is `[slots, 1, 1, keys]`.
        Mask::Array(mask) if mask.ndim() == 4 => Some(mask.expand_dims(1)),
        Mask::Array(mask) => Some(mask.clone()),
    };
    let scores =
        mask.map_or(capped.clone(), |mask| Array::where_(&mask, &capped, &Array::scalar(f32::MIN)));
    let out = scores.softmax(-1).astype(v.dtype()).matmul(&v);
    out.reshape(&[batch, heads, seq, v.dim(4)])
}

/// Returns a boolean mask `[queries, keys]`, true for the keys up to each query's own position. The
/// queries are at the last `num_queries` positions of the keys.
#[track_caller]
pub fn causal_mask(num_queries: i32, num_keys: i32) -> Array {
    let i = Array::arange_from(num_keys - num_queries, num_keys, Dtype::I32).expand_dims(1);
    Array::arange_from(0, num_keys, Dtype::I32).expand_dims(0).less_equal(&i)
}
