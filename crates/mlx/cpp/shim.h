// What the bridge in src/ffi.rs calls: libmlx's own functions behind types cxx can pass. No logic.
// Lists of zero or one array stand for optional arrays.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graph_copy.h"
#include "mlx/mlx.h"
#include "rust/cxx.h"

namespace jackalope {

using mlx::core::array;
using RawGroup = mlx::core::distributed::Group;
using Array = std::unique_ptr<array>;
using Arrays = std::unique_ptr<std::vector<array>>;
using Dims = rust::Slice<const int32_t>;

struct ArrayRef;
struct QuantSpec;
struct OutputSpec;
struct GpuKernelSpec;
struct KernelInput;
struct KernelOutput;
struct GraphBuilder;
struct Kernel;
struct Link;
using Refs = rust::Slice<const ArrayRef>;

Array allocate(Dims shape, uint8_t dtype);
Array full(Dims shape, float value, uint8_t dtype);
Array scalar(float value, uint8_t dtype);
Array arange(double start, double stop, uint8_t dtype);
Array load(rust::Str path);
Array copy(const array& a);
Dims shape(const array& a);
uint8_t dtype(const array& a);
uint8_t* data(const array& a);
bool row_contiguous(const array& a);
Array pick(const std::vector<array>& arrays, size_t idx);

Arrays together(Refs arrays);

// Builds the graph of a function for these inputs, as MLX simplifies it.
Arrays compiled(Refs inputs, GraphBuilder& builder);
std::unique_ptr<GraphCopy> graph_copy(Refs inputs, const std::vector<array>& outputs);
Arrays apply(const GraphCopy& graph, Refs inputs);
bool is_counting();

void eval(Refs arrays);
void begin_counting();
size_t num_nodes(Refs arrays);
rust::Vec<rust::String> nodes_of_nothing(Refs arrays);
void async_eval(Refs arrays);
bool is_available(const array& a);
void synchronize();

Array astype(const array& a, uint8_t dtype);
Array view(const array& a, uint8_t dtype);
Array reshape(const array& a, Dims shape);
Array transpose(const array& a, Dims axes);
Array swapaxes(const array& a, int32_t first, int32_t second);
Array flatten(const array& a, int32_t start, int32_t end);
Array expand_dims(const array& a, int32_t axis);
Array squeeze(const array& a, int32_t axis);
Array broadcast_to(const array& a, Dims shape);
Array slice(const array& a, Dims start, Dims stop);
Array slice_update(const array& a, const array& update, Dims start, Dims stop);
Array contiguous(const array& a);
Array concatenate(Refs arrays, int32_t axis);
Array stack(Refs arrays, int32_t axis);
Arrays split(const array& a, int32_t sections, int32_t axis);
Array repeat(const array& a, int32_t times, int32_t axis);

Array take(const array& a, const array& indices, int32_t axis);
Array take_along_axis(const array& a, const array& indices, int32_t axis);
Array scatter(const array& a, Refs indices, Dims axes, const array& update);
Array where_(const array& condition, const array& a, const array& b);
Array depends(const array& a, Refs dependencies);

Array add(const array& a, const array& b);
Array subtract(const array& a, const array& b);
Array multiply(const array& a, const array& b);
Array divide(const array& a, const array& b);
Array power(const array& a, const array& b);
Array maximum(const array& a, const array& b);
Array logaddexp(const array& a, const array& b);
Array minimum(const array& a, const array& b);
Array greater(const array& a, const array& b);
Array greater_equal(const array& a, const array& b);
Array less(const array& a, const array& b);
Array less_equal(const array& a, const array& b);
Array equal(const array& a, const array& b);
Array logical_and(const array& a, const array& b);
Array logical_or(const array& a, const array& b);
Array left_shift(const array& a, const array& b);
Array right_shift(const array& a, const array& b);
Array bitwise_and(const array& a, const array& b);
Array bitwise_xor(const array& a, const array& b);
Array remainder(const array& a, const array& b);
Array floor_divide(const array& a, const array& b);
Array matmul(const array& a, const array& b);
Array negative(const array& a);
Array logical_not(const array& a);
Array abs(const array& a);
Array exp(const array& a);
Array log(const array& a);
Array sin(const array& a);
Array cos(const array& a);
Array tanh(const array& a);
Array erf(const array& a);
Array sigmoid(const array& a);
Array round(const array& a);
Array square(const array& a);
Array sqrt(const array& a);
Array rsqrt(const array& a);

Array sum(const array& a, int32_t axis, bool keepdims);
Array mean(const array& a, int32_t axis, bool keepdims);
Array max(const array& a, int32_t axis, bool keepdims);
Array min(const array& a, int32_t axis, bool keepdims);
Array logsumexp(const array& a, int32_t axis, bool keepdims);
Array all(const array& a, int32_t axis, bool keepdims);
Array argmax(const array& a, int32_t axis);
Array softmax(const array& a, int32_t axis);
Array cumsum(const array& a, int32_t axis);
Array argsort(const array& a, int32_t axis);
Array argpartition(const array& a, int32_t kth, int32_t axis);

Array rms_norm(const array& x, Refs weight, float eps);
Array layer_norm(const array& x, Refs weight, Refs bias, float eps);
Array rope(
    const array& x, int32_t dims, bool traditional, const array& freqs, const array& positions);
Arrays gated_delta_update(Refs inputs);
Arrays gpu_kernel(
    const GpuKernelSpec& spec, Refs inputs, rust::Slice<const OutputSpec> outputs);
Array attention(Refs qkv, float scale, rust::Str mask_mode, Refs mask, Refs sinks);

Array quantized_matmul(
    const array& x, Refs w_scales, Refs biases, bool transpose, const QuantSpec& spec);
Array gather_quantized_matmul(
    const array& x, Refs w_scales_indices, Refs biases, bool is_sorted, const QuantSpec& spec);
Array gather_matmul(const array& x, const array& w, const array& indices, bool is_sorted);
Arrays quantize(const array& w, const QuantSpec& spec);
Array dequantize(
    const array& w, const array& scales, Refs biases, const QuantSpec& spec, uint8_t dtype);

bool default_device_is_gpu();
void set_default_device_gpu(bool gpu);
bool gpu_available();
bool metal_available();
void exit_now(int32_t code);
rust::String version();
size_t active_bytes();
size_t peak_bytes();
void reset_peak();
size_t cache_bytes();
size_t set_memory_limit(size_t bytes);
size_t set_cache_limit(size_t bytes);
size_t set_wired_limit(size_t bytes);
size_t recommended_bytes();
void clear_cache();

Arrays custom(
    Refs inputs, rust::Slice<const OutputSpec> outputs, rust::Str name, rust::Box<Kernel> kernel);

std::unique_ptr<RawGroup> native_group(rust::Box<Link> link);
bool stock_group_available(rust::Str backend);
std::unique_ptr<RawGroup> stock_group(rust::Str backend);
std::unique_ptr<RawGroup> copy_group(const RawGroup& group);
int32_t group_rank(const RawGroup& group);
int32_t group_size(const RawGroup& group);
Array group_all_sum(const RawGroup& group, const array& a);
Array group_all_gather(const RawGroup& group, const array& a);
Array group_send(const RawGroup& group, const array& a, int32_t to);
Array group_recv(const RawGroup& group, Dims shape, uint8_t dtype, int32_t from);

} // namespace jackalope
