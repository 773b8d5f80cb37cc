//! The bridge: the interface of libmlx for Rust, and of Rust for libmlx.
//!
//! Every C++ function that can throw returns a `Result` here. The Rust functions that C++ calls on
//! MLX's worker threads (custom kernels, the native group's operations) catch panics themselves and
//! return a `Result`, whose error C++ receives as an exception.

pub(crate) mod builder;
pub(crate) mod kernel;

use self::builder::GraphBuilder;
use self::kernel::Kernel;
use crate::kernel_sums::SumFailure;
use crate::link::Link;

#[cxx::bridge(namespace = "jackalope")]
pub(crate) mod bridge {
    /// A borrowed array, for lists of arrays.
    struct ArrayRef<'a> {
        array: &'a RawArray,
    }

    /// A quantisation format with MLX's names.
    struct QuantSpec<'a> {
        mode: &'a str,
        group_size: i32,
        bits: i32,
    }

    /// An input of a custom kernel. `strides` is empty when the data is row-contiguous.
    struct KernelInput {
        data: *const u8,
        strides: Vec<i64>,
    }

    /// An output of a custom kernel: freshly allocated, row-contiguous.
    struct KernelOutput {
        data: *mut u8,
    }

    /// The shape and element type of an array to be created.
    struct OutputSpec<'a> {
        shape: &'a [i32],
        dtype: u8,
    }

    /// A kernel for GPUs, with the names of MLX's arguments.
    struct GpuKernelSpec<'a> {
        name: &'a str,
        inputs: Vec<String>,
        outputs: Vec<String>,
        source: &'a str,
        header: &'a str,
        constant_names: Vec<String>,
        constant_values: &'a [i32],
        grid: [i32; 3],
        group: [i32; 3],
    }

    extern "Rust" {
        type GraphBuilder<'a>;
        unsafe fn build_graph<'a>(
            builder: &mut GraphBuilder<'a>,
            inputs: &CxxVector<RawArray>,
        ) -> Result<UniquePtr<CxxVector<RawArray>>>;

        type Kernel;
        fn run_kernel(
            kernel: &Kernel,
            inputs: &[KernelInput],
            outputs: &[KernelOutput],
        ) -> Result<()>;

        type Link;
        fn link_rank(link: &Link) -> i32;
        fn link_size(link: &Link) -> i32;
        unsafe fn link_all_sum(link: &Link, data: *mut u8, nbytes: usize, dtype: u8) -> Result<()>;
        unsafe fn link_all_gather(
            link: &Link,
            local: *const u8,
            nbytes: usize,
            out: *mut u8,
            dtype: u8,
        ) -> Result<()>;
        unsafe fn link_send(
            link: &Link,
            data: *const u8,
            nbytes: usize,
            dtype: u8,
            to: i32,
        ) -> Result<()>;
        unsafe fn link_recv(
            link: &Link,
            data: *mut u8,
            nbytes: usize,
            dtype: u8,
            from: i32,
        ) -> Result<()>;
    }

    unsafe extern "C++" {
        include!("shim.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type RawArray;
        #[namespace = "mlx::core::distributed"]
        #[cxx_name = "Group"]
        type RawGroup;
        type GraphCopy;

        // Arrays.
        fn allocate(shape: &[i32], dtype: u8) -> Result<UniquePtr<RawArray>>;
        fn full(shape: &[i32], value: f32, dtype: u8) -> Result<UniquePtr<RawArray>>;
        fn scalar(value: f32, dtype: u8) -> Result<UniquePtr<RawArray>>;
        fn arange(start: f64, stop: f64, dtype: u8) -> Result<UniquePtr<RawArray>>;
        fn load(path: &str) -> Result<UniquePtr<RawArray>>;
        fn copy(a: &RawArray) -> UniquePtr<RawArray>;
        fn shape(a: &RawArray) -> &[i32];
        fn dtype(a: &RawArray) -> u8;
        fn data(a: &RawArray) -> *mut u8;
        fn row_contiguous(a: &RawArray) -> bool;
        fn pick(arrays: &CxxVector<RawArray>, idx: usize) -> UniquePtr<RawArray>;
        fn together(arrays: &[ArrayRef]) -> UniquePtr<CxxVector<RawArray>>;

        // Functions.
        unsafe fn compiled<'a>(
            inputs: &[ArrayRef],
            builder: &mut GraphBuilder<'a>,
        ) -> Result<UniquePtr<CxxVector<RawArray>>>;
        fn graph_copy(
            inputs: &[ArrayRef],
            outputs: &CxxVector<RawArray>,
        ) -> Result<UniquePtr<GraphCopy>>;
        fn apply(graph: &GraphCopy, inputs: &[ArrayRef]) -> UniquePtr<CxxVector<RawArray>>;
        fn is_counting() -> bool;

        // Evaluation.
        fn eval(arrays: &[ArrayRef]) -> Result<()>;
        fn begin_counting();
        fn num_nodes(arrays: &[ArrayRef]) -> usize;
        fn nodes_of_nothing(arrays: &[ArrayRef]) -> Vec<String>;
        fn async_eval(arrays: &[ArrayRef]) -> Result<()>;
        fn is_available(a: &RawArray) -> bool;
        fn synchronize() -> Result<()>;

        // Shapes.
        fn astype(a: &RawArray, dtype: u8) -> Result<UniquePtr<RawArray>>;
        fn view(a: &RawArray, dtype: u8) -> Result<UniquePtr<RawArray>>;
        fn reshape(a: &RawArray, shape: &[i32]) -> Result<UniquePtr<RawArray>>;
        fn transpose(a: &RawArray, axes: &[i32]) -> Result<UniquePtr<RawArray>>;
        fn swapaxes(a: &RawArray, first: i32, second: i32) -> Result<UniquePtr<RawArray>>;
        fn flatten(a: &RawArray, start: i32, end: i32) -> Result<UniquePtr<RawArray>>;
        fn expand_dims(a: &RawArray, axis: i32) -> Result<UniquePtr<RawArray>>;
        fn squeeze(a: &RawArray, axis: i32) -> Result<UniquePtr<RawArray>>;
        fn broadcast_to(a: &RawArray, shape: &[i32]) -> Result<UniquePtr<RawArray>>;
        fn slice(a: &RawArray, start: &[i32], stop: &[i32]) -> Result<UniquePtr<RawArray>>;
        fn slice_update(
            a: &RawArray,
            update: &RawArray,
            start: &[i32],
            stop: &[i32],
        ) -> Result<UniquePtr<RawArray>>;
        fn contiguous(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn concatenate(arrays: &[ArrayRef], axis: i32) -> Result<UniquePtr<RawArray>>;
        fn stack(arrays: &[ArrayRef], axis: i32) -> Result<UniquePtr<RawArray>>;
        fn split(a: &RawArray, sections: i32, axis: i32) -> Result<UniquePtr<CxxVector<RawArray>>>;
        fn repeat(a: &RawArray, times: i32, axis: i32) -> Result<UniquePtr<RawArray>>;

        // Indexing.
        fn take(a: &RawArray, indices: &RawArray, axis: i32) -> Result<UniquePtr<RawArray>>;
        fn take_along_axis(
            a: &RawArray,
            indices: &RawArray,
            axis: i32,
        ) -> Result<UniquePtr<RawArray>>;
        fn scatter(
            a: &RawArray,
            indices: &[ArrayRef],
            axes: &[i32],
            update: &RawArray,
        ) -> Result<UniquePtr<RawArray>>;
        fn where_(condition: &RawArray, a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn depends(a: &RawArray, dependencies: &[ArrayRef]) -> Result<UniquePtr<RawArray>>;

        // Element by element.
        fn add(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn subtract(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn multiply(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn divide(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn power(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn maximum(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn logaddexp(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn minimum(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn greater(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn greater_equal(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn less(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn less_equal(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn equal(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn logical_and(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn logical_or(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn left_shift(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn right_shift(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn bitwise_and(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn bitwise_xor(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn remainder(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn floor_divide(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn matmul(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn negative(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn logical_not(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn abs(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn exp(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn log(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn sin(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn cos(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn tanh(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn erf(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn sigmoid(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn round(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn square(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn sqrt(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn rsqrt(a: &RawArray) -> Result<UniquePtr<RawArray>>;

        // Along an axis.
        fn sum(a: &RawArray, axis: i32, keepdims: bool) -> Result<UniquePtr<RawArray>>;
        fn mean(a: &RawArray, axis: i32, keepdims: bool) -> Result<UniquePtr<RawArray>>;
        fn max(a: &RawArray, axis: i32, keepdims: bool) -> Result<UniquePtr<RawArray>>;
        fn min(a: &RawArray, axis: i32, keepdims: bool) -> Result<UniquePtr<RawArray>>;
        fn logsumexp(a: &RawArray, axis: i32, keepdims: bool) -> Result<UniquePtr<RawArray>>;
        fn all(a: &RawArray, axis: i32, keepdims: bool) -> Result<UniquePtr<RawArray>>;
        fn argmax(a: &RawArray, axis: i32) -> Result<UniquePtr<RawArray>>;
        fn softmax(a: &RawArray, axis: i32) -> Result<UniquePtr<RawArray>>;
        fn cumsum(a: &RawArray, axis: i32) -> Result<UniquePtr<RawArray>>;
        fn argsort(a: &RawArray, axis: i32) -> Result<UniquePtr<RawArray>>;
        fn argpartition(a: &RawArray, kth: i32, axis: i32) -> Result<UniquePtr<RawArray>>;

        // Fused. A list stands for an optional array: empty or one.
        fn rms_norm(x: &RawArray, weight: &[ArrayRef], eps: f32) -> Result<UniquePtr<RawArray>>;
        fn layer_norm(
            x: &RawArray,
            weight: &[ArrayRef],
            bias: &[ArrayRef],
            eps: f32,
        ) -> Result<UniquePtr<RawArray>>;
        fn rope(
            x: &RawArray,
            dims: i32,
            traditional: bool,
            freqs: &RawArray,
            positions: &RawArray,
        ) -> Result<UniquePtr<RawArray>>;
        fn gated_delta_update(inputs: &[ArrayRef]) -> Result<UniquePtr<CxxVector<RawArray>>>;
        fn gpu_kernel(
            spec: &GpuKernelSpec,
            inputs: &[ArrayRef],
            outputs: &[OutputSpec],
        ) -> Result<UniquePtr<CxxVector<RawArray>>>;
        fn attention(
            qkv: &[ArrayRef],
            scale: f32,
            mask_mode: &str,
            mask: &[ArrayRef],
            sinks: &[ArrayRef],
        ) -> Result<UniquePtr<RawArray>>;

        // Quantised.
        fn quantized_matmul(
            x: &RawArray,
            w_scales: &[ArrayRef],
            biases: &[ArrayRef],
            transpose: bool,
            spec: &QuantSpec,
        ) -> Result<UniquePtr<RawArray>>;
        fn gather_quantized_matmul(
            x: &RawArray,
            w_scales_indices: &[ArrayRef],
            biases: &[ArrayRef],
            is_sorted: bool,
            spec: &QuantSpec,
        ) -> Result<UniquePtr<RawArray>>;
        fn gather_matmul(
            x: &RawArray,
            w: &RawArray,
            indices: &RawArray,
            is_sorted: bool,
        ) -> Result<UniquePtr<RawArray>>;
        fn quantize(w: &RawArray, spec: &QuantSpec) -> Result<UniquePtr<CxxVector<RawArray>>>;
        fn dequantize(
            w: &RawArray,
            scales: &RawArray,
            biases: &[ArrayRef],
            spec: &QuantSpec,
            dtype: u8,
        ) -> Result<UniquePtr<RawArray>>;

        // The device and its memory.
        fn default_device_is_gpu() -> bool;
        fn set_default_device_gpu(gpu: bool) -> Result<()>;
        fn gpu_available() -> bool;
        fn metal_available() -> bool;
        fn exit_now(code: i32);
        fn version() -> String;
        fn active_bytes() -> usize;
        fn peak_bytes() -> usize;
        fn reset_peak() -> Result<()>;
        fn cache_bytes() -> usize;
        fn set_memory_limit(bytes: usize) -> Result<usize>;
        fn set_cache_limit(bytes: usize) -> Result<usize>;
        fn set_wired_limit(bytes: usize) -> Result<usize>;
        fn recommended_bytes() -> Result<usize>;
        fn clear_cache() -> Result<()>;

        // Custom kernels.
        fn custom(
            inputs: &[ArrayRef],
            outputs: &[OutputSpec],
            name: &str,
            kernel: Box<Kernel>,
        ) -> Result<UniquePtr<CxxVector<RawArray>>>;

        // Groups.
        fn native_group(link: Box<Link>) -> UniquePtr<RawGroup>;
        fn stock_group_available(backend: &str) -> Result<bool>;
        fn stock_group(backend: &str) -> Result<UniquePtr<RawGroup>>;
        fn copy_group(group: &RawGroup) -> UniquePtr<RawGroup>;
        fn group_rank(group: &RawGroup) -> i32;
        fn group_size(group: &RawGroup) -> i32;
        fn group_all_sum(group: &RawGroup, a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn group_all_gather(group: &RawGroup, a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn group_send(group: &RawGroup, a: &RawArray, to: i32) -> Result<UniquePtr<RawArray>>;
        fn group_recv(
            group: &RawGroup,
            shape: &[i32],
            dtype: u8,
            from: i32,
        ) -> Result<UniquePtr<RawArray>>;
    }
}

use bridge::{KernelInput, KernelOutput, RawArray};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cxx::{CxxVector, UniquePtr};

fn build_graph(
    builder: &mut GraphBuilder<'_>,
    inputs: &CxxVector<RawArray>,
) -> Result<UniquePtr<CxxVector<RawArray>>, String> {
    builder.build(inputs)
}

fn run_kernel(
    kernel: &Kernel,
    inputs: &[KernelInput],
    outputs: &[KernelOutput],
) -> Result<(), String> {
    // SAFETY: the shim passes one pointer per declared input and output, each to a buffer of the
    // declared size that lives until the task has run; no two outputs share one.
    guarded(kernel.name, || unsafe { kernel.run(inputs, outputs) })
}

fn link_rank(link: &Link) -> i32 {
    link.rank()
}

fn link_size(link: &Link) -> i32 {
    link.size()
}

// SAFETY: (all four) the shim passes buffers of the given size that live until the task has run.
// Inputs and outputs do not overlap.
unsafe fn link_all_sum(link: &Link, data: *mut u8, nbytes: usize, dtype: u8) -> Result<(), String> {
    // SAFETY: see above.
    let data = unsafe { slice_mut(data, nbytes) };
    guarded("all_sum", || link.all_sum(data, dtype))
}

unsafe fn link_all_gather(
    link: &Link,
    local: *const u8,
    nbytes: usize,
    out: *mut u8,
    dtype: u8,
) -> Result<(), String> {
    let num_ranks = usize::try_from(link.size()).expect("a group has at least one rank");
    // SAFETY: see above; the output holds `nbytes` for every rank.
    let (local, out) = unsafe { (slice(local, nbytes), slice_mut(out, nbytes * num_ranks)) };
    guarded("all_gather", || link.all_gather(local, out, dtype))
}

unsafe fn link_send(
    link: &Link,
    data: *const u8,
    nbytes: usize,
    dtype: u8,
    to: i32,
) -> Result<(), String> {
    // SAFETY: see above.
    let data = unsafe { slice(data, nbytes) };
    guarded("send", || link.send(data, dtype, to))
}

unsafe fn link_recv(
    link: &Link,
    data: *mut u8,
    nbytes: usize,
    dtype: u8,
    from: i32,
) -> Result<(), String> {
    // SAFETY: see above.
    let data = unsafe { slice_mut(data, nbytes) };
    guarded("recv", || link.recv(data, dtype, from))
}

/// Runs a leaf and converts an error or a panic to text, so that nothing unwinds into C++.
fn guarded<E: Display>(what: &str, leaf: impl FnOnce() -> Result<(), E>) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(leaf)) {
        Ok(result) => result.map_err(|err| format!("{what}: {err}")),
        Err(panic) => {
            if let Some(SumFailure(text)) = panic.downcast_ref() {
                return Err(format!("{what}: {text}"));
            }
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("a panic without a message");
            Err(format!("{what}: panicked: {text}"))
        }
    }
}

/// Creates a byte slice over MLX memory; empty arrays have no pointer.
///
/// # Safety
/// `data` must point to `nbytes` readable bytes that no code writes while the slice lives.
pub(crate) unsafe fn slice<'a>(data: *const u8, nbytes: usize) -> &'a [u8] {
    if nbytes == 0 {
        return &[];
    }
    // SAFETY: guaranteed by the caller. Memory from MLX's allocator is plain bytes to Rust.
    unsafe { std::slice::from_raw_parts(data, nbytes) }
}

/// Creates a mutable byte slice over MLX memory.
///
/// # Safety
/// `data` must point to `nbytes` writable bytes that no other code accesses while the slice lives.
pub(crate) unsafe fn slice_mut<'a>(data: *mut u8, nbytes: usize) -> &'a mut [u8] {
    if nbytes == 0 {
        return &mut [];
    }
    // SAFETY: guaranteed by the caller. Memory from MLX's allocator is plain bytes to Rust.
    unsafe { std::slice::from_raw_parts_mut(data, nbytes) }
}
