#include "shim.h"

#include <unistd.h>

#if defined(__GLIBC__)
#include <malloc.h>
#elif defined(__APPLE__)
#include <malloc/malloc.h>
#endif

#include <cstring>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

#include "jackalope-mlx/src/ffi.rs.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/backend/metal/metal.h"
#include "mlx/distributed/distributed.h"
#include "mlx/distributed/distributed_impl.h"
#include "mlx/distributed/ops.h"
#include "mlx/primitives.h"

namespace mx = mlx::core;
namespace md = mlx::core::distributed;

namespace jackalope {
namespace {

mx::Shape to_shape(Dims dims) {
  return mx::Shape(dims.begin(), dims.end());
}

std::vector<int> to_axes(Dims dims) {
  return std::vector<int>(dims.begin(), dims.end());
}

Array boxed(array a) {
  return std::make_unique<array>(std::move(a));
}

Arrays boxed(std::vector<array> arrays) {
  return std::make_unique<std::vector<array>>(std::move(arrays));
}

std::vector<array> to_vector(Refs refs) {
  std::vector<array> arrays;
  arrays.reserve(refs.size());
  for (const ArrayRef& ref : refs) arrays.push_back(ref.array);
  return arrays;
}

// Results of fused operations and their inputs, while nodes are counted. On a device without a
// fused operation, MLX builds several nodes in its place; they count as one.
thread_local std::optional<std::unordered_map<std::uintptr_t, std::vector<array>>> fused_inputs;

Array fused(array out, std::vector<array> inputs) {
  if (fused_inputs) fused_inputs->emplace(out.id(), std::move(inputs));
  return boxed(std::move(out));
}

std::optional<array> optional(Refs refs) {
  return refs.empty() ? std::nullopt : std::optional<array>(refs[0].array);
}

// The codes of src/dtype.rs are the values of MLX's own enum.
constexpr mx::Dtype kDtypes[] = {
    mx::bool_,   mx::uint8,   mx::uint16,  mx::uint32,  mx::uint64,   mx::int8,     mx::int16,
    mx::int32,   mx::int64,   mx::float16, mx::float32, mx::float64,  mx::bfloat16, mx::complex64};

mx::Dtype to_dtype(uint8_t code) {
  return kDtypes[code];
}

std::string to_string(rust::Str text) {
  return std::string(text);
}

// A primitive whose work is a Rust closure. It runs on the CPU stream's worker; the task shares
// ownership of the closure, because the graph node may be gone by then.
class CustomPrimitive : public mx::Primitive {
 public:
  CustomPrimitive(mx::Stream stream, std::string name, rust::Box<Kernel> kernel)
      : mx::Primitive(stream),
        name_(std::move(name)),
        kernel_(std::make_shared<rust::Box<Kernel>>(std::move(kernel))) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    std::vector<KernelInput> ins;
    for (const array& in : inputs) {
      encoder.set_input_array(in);
      rust::Vec<int64_t> strides;
      if (!in.flags().row_contiguous)
        for (auto stride : in.strides()) strides.push_back(stride);
      ins.push_back(KernelInput{in.data<uint8_t>(), std::move(strides)});
    }
    std::vector<KernelOutput> outs;
    for (array& out : outputs) {
      out.set_data(mx::allocator::malloc(out.nbytes()));
      encoder.set_output_array(out);
      outs.push_back(KernelOutput{out.data<uint8_t>()});
    }
    encoder.dispatch([kernel = kernel_, ins = std::move(ins), outs = std::move(outs)] {
      run_kernel(
          **kernel,
          rust::Slice<const KernelInput>(ins.data(), ins.size()),
          rust::Slice<const KernelOutput>(outs.data(), outs.size()));
    });
  }

  void eval_gpu(const std::vector<array>&, std::vector<array>&) override {
    throw std::runtime_error(name_ + " has no GPU implementation");
  }

  const char* name() const override {
    return name_.c_str();
  }

 private:
  std::string name_;
  std::shared_ptr<rust::Box<Kernel>> kernel_;
};

// A group whose operations are Rust's. They run on the CPU stream's worker, in the order of the
// graph; the tasks share ownership of the link.
class NativeGroup : public md::detail::GroupImpl {
 public:
  explicit NativeGroup(rust::Box<Link> link)
      : link_(std::make_shared<rust::Box<Link>>(std::move(link))) {}

  mx::Stream communication_stream(mx::StreamOrDevice s) override {
    return mx::to_stream(s, mx::Device::cpu);
  }
  int rank() override {
    return link_rank(**link_);
  }
  int size() override {
    return link_size(**link_);
  }
  std::shared_ptr<md::detail::GroupImpl> split(int, int) override {
    throw std::runtime_error("a native group cannot be split");
  }

  void all_sum(const array& in, array& out, mx::Stream stream) override {
    dispatch(stream, [link = link_, ip = in.data<uint8_t>(), op = out.data<uint8_t>(),
                      nbytes = in.nbytes(), dtype = dtype_of(in)] {
      if (ip != op) std::memcpy(op, ip, nbytes);
      link_all_sum(**link, op, nbytes, dtype);
    });
  }
  void all_gather(const array& in, array& out, mx::Stream stream) override {
    dispatch(stream, [link = link_, ip = in.data<uint8_t>(), op = out.data<uint8_t>(),
                      nbytes = in.nbytes(), dtype = dtype_of(in)] {
      link_all_gather(**link, ip, nbytes, op, dtype);
    });
  }
  void send(const array& in, int to, mx::Stream stream) override {
    dispatch(stream, [link = link_, ip = in.data<uint8_t>(), nbytes = in.nbytes(),
                      dtype = dtype_of(in), to] {
      link_send(**link, ip, nbytes, dtype, to);
    });
  }
  void recv(array& out, int from, mx::Stream stream) override {
    dispatch(stream, [link = link_, op = out.data<uint8_t>(), nbytes = out.nbytes(),
                      dtype = dtype_of(out), from] {
      link_recv(**link, op, nbytes, dtype, from);
    });
  }

  void all_max(const array&, array&, mx::Stream) override {
    throw std::runtime_error("a native group has no all_max");
  }
  void all_min(const array&, array&, mx::Stream) override {
    throw std::runtime_error("a native group has no all_min");
  }
  void sum_scatter(const array&, array&, mx::Stream) override {
    throw std::runtime_error("a native group has no sum_scatter");
  }

 private:
  static uint8_t dtype_of(const array& a) {
    return static_cast<uint8_t>(a.dtype().val());
  }
  template <typename Task>
  static void dispatch(mx::Stream stream, Task task) {
    mx::cpu::get_command_encoder(stream).dispatch(std::move(task));
  }

  std::shared_ptr<rust::Box<Link>> link_;
};

} // namespace

Array allocate(Dims shape, uint8_t dtype) {
  auto dims = to_shape(shape);
  size_t size = 1;
  for (auto dim : dims) size *= dim;
  auto type = to_dtype(dtype);
  return boxed(array(mx::allocator::malloc(size * type.size()), std::move(dims), type));
}
Array full(Dims shape, float value, uint8_t dtype) {
  return boxed(mx::full(to_shape(shape), value, to_dtype(dtype)));
}
Array scalar(float value, uint8_t dtype) {
  return boxed(array(value, to_dtype(dtype)));
}
Array arange(double start, double stop, uint8_t dtype) {
  return boxed(mx::arange(start, stop, to_dtype(dtype)));
}
Array load(rust::Str path) {
  return boxed(mx::load(to_string(path)));
}
Array copy(const array& a) {
  return boxed(a);
}
Dims shape(const array& a) {
  return Dims(a.shape().data(), a.ndim());
}
uint8_t dtype(const array& a) {
  return static_cast<uint8_t>(a.dtype().val());
}
uint8_t* data(const array& a) {
  return const_cast<array&>(a).data<uint8_t>();
}
bool row_contiguous(const array& a) {
  return a.flags().row_contiguous;
}
Array pick(const std::vector<array>& arrays, size_t idx) {
  return boxed(arrays[idx]);
}

Arrays together(Refs arrays) {
  return boxed(to_vector(arrays));
}

Arrays compiled(Refs inputs, GraphBuilder& builder) {
  // On a CPU, fused operations would need a C++ compiler where this runs.
  if (mx::default_device() == mx::Device::cpu) mx::set_compile_mode(mx::CompileMode::no_fuse);
  std::function<std::vector<array>(const std::vector<array>&)> build =
      [&builder](const std::vector<array>& placeholders) {
        return *build_graph(builder, placeholders);
      };
  return boxed(mx::compile(std::move(build))(to_vector(inputs)));
}
std::unique_ptr<GraphCopy> graph_copy(Refs inputs, const std::vector<array>& outputs) {
  return std::make_unique<GraphCopy>(to_vector(inputs), outputs);
}
Arrays apply(const GraphCopy& graph, Refs inputs) {
  return boxed(graph.apply(to_vector(inputs)));
}
bool is_counting() {
  return fused_inputs.has_value();
}

void eval(Refs arrays) {
  mx::eval(to_vector(arrays));
}
void begin_counting() {
  fused_inputs.emplace();
}
size_t num_nodes(Refs arrays) {
  std::unordered_set<std::uintptr_t> seen;
  std::vector<array> rest = to_vector(arrays);
  size_t count = 0;
  while (!rest.empty()) {
    array a = std::move(rest.back());
    rest.pop_back();
    if (!a.has_primitive() || a.is_available()) continue;
    bool is_new = seen.insert(a.id()).second;
    for (const array& sibling : a.siblings()) is_new &= seen.insert(sibling.id()).second;
    if (!is_new) continue;
    ++count;
    auto known = fused_inputs ? fused_inputs->find(a.id()) : decltype(fused_inputs->end()){};
    const auto& inputs =
        fused_inputs && known != fused_inputs->end() ? known->second : a.inputs();
    rest.insert(rest.end(), inputs.begin(), inputs.end());
  }
  fused_inputs.reset();
  return count;
}
rust::Vec<rust::String> nodes_of_nothing(Refs arrays) {
  std::unordered_set<std::uintptr_t> seen;
  std::vector<array> rest = to_vector(arrays);
  rust::Vec<rust::String> names;
  while (!rest.empty()) {
    array a = std::move(rest.back());
    rest.pop_back();
    if (!a.has_primitive() || a.is_available() || !seen.insert(a.id()).second) continue;
    if (a.size() == 0) names.push_back(a.primitive().name());
    rest.insert(rest.end(), a.inputs().begin(), a.inputs().end());
  }
  return names;
}
void async_eval(Refs arrays) {
  mx::async_eval(to_vector(arrays));
}
bool is_available(const array& a) {
  return a.is_available();
}
void synchronize() {
  mx::synchronize(mx::default_stream(mx::Device::cpu));
  mx::synchronize();
}

Array astype(const array& a, uint8_t dtype) {
  return boxed(mx::astype(a, to_dtype(dtype)));
}

Array view(const array& a, uint8_t dtype) {
  return boxed(mx::view(a, to_dtype(dtype)));
}
Array reshape(const array& a, Dims shape) {
  return boxed(mx::reshape(a, to_shape(shape)));
}
Array transpose(const array& a, Dims axes) {
  return boxed(mx::transpose(a, to_axes(axes)));
}
Array swapaxes(const array& a, int32_t first, int32_t second) {
  return boxed(mx::swapaxes(a, first, second));
}
Array flatten(const array& a, int32_t start, int32_t end) {
  return boxed(mx::flatten(a, start, end));
}
Array expand_dims(const array& a, int32_t axis) {
  return boxed(mx::expand_dims(a, axis));
}
Array squeeze(const array& a, int32_t axis) {
  return boxed(mx::squeeze(a, axis));
}
Array broadcast_to(const array& a, Dims shape) {
  return boxed(mx::broadcast_to(a, to_shape(shape)));
}
Array slice(const array& a, Dims start, Dims stop) {
  return boxed(mx::slice(a, to_shape(start), to_shape(stop)));
}
Array slice_update(const array& a, const array& update, Dims start, Dims stop) {
  return boxed(mx::slice_update(a, update, to_shape(start), to_shape(stop)));
}
Array contiguous(const array& a) {
  return boxed(mx::contiguous(a));
}
Array concatenate(Refs arrays, int32_t axis) {
  return boxed(mx::concatenate(to_vector(arrays), axis));
}
Array stack(Refs arrays, int32_t axis) {
  return boxed(mx::stack(to_vector(arrays), axis));
}
Arrays split(const array& a, int32_t sections, int32_t axis) {
  return boxed(mx::split(a, sections, axis));
}
Array repeat(const array& a, int32_t times, int32_t axis) {
  return boxed(mx::repeat(a, times, axis));
}

Array take(const array& a, const array& indices, int32_t axis) {
  return boxed(mx::take(a, indices, axis));
}
Array take_along_axis(const array& a, const array& indices, int32_t axis) {
  return boxed(mx::take_along_axis(a, indices, axis));
}
Array scatter(const array& a, Refs indices, Dims axes, const array& update) {
  return boxed(mx::scatter(a, to_vector(indices), update, to_axes(axes)));
}
Array where_(const array& condition, const array& a, const array& b) {
  return boxed(mx::where(condition, a, b));
}
Array depends(const array& a, Refs dependencies) {
  return boxed(mx::depends({a}, to_vector(dependencies))[0]);
}

#define BINARY(name)                              \
  Array name(const array& a, const array& b) {    \
    return boxed(mx::name(a, b));                 \
  }
BINARY(add)
BINARY(subtract)
BINARY(multiply)
BINARY(divide)
BINARY(power)
BINARY(maximum)
BINARY(logaddexp)
BINARY(minimum)
BINARY(greater)
BINARY(greater_equal)
BINARY(less)
BINARY(less_equal)
BINARY(equal)
BINARY(logical_and)
BINARY(logical_or)
BINARY(left_shift)
BINARY(right_shift)
BINARY(bitwise_and)
BINARY(bitwise_xor)
BINARY(remainder)
BINARY(floor_divide)
BINARY(matmul)
#undef BINARY

#define UNARY(name)               \
  Array name(const array& a) {    \
    return boxed(mx::name(a));    \
  }
UNARY(negative)
UNARY(logical_not)
UNARY(abs)
UNARY(exp)
UNARY(log)
UNARY(sin)
UNARY(cos)
UNARY(tanh)
UNARY(erf)
UNARY(sigmoid)
UNARY(round)
UNARY(square)
UNARY(sqrt)
UNARY(rsqrt)
#undef UNARY

#define REDUCTION(name)                                       \
  Array name(const array& a, int32_t axis, bool keepdims) {   \
    return boxed(mx::name(a, axis, keepdims));                \
  }
REDUCTION(sum)
REDUCTION(mean)
REDUCTION(max)
REDUCTION(min)
REDUCTION(logsumexp)
REDUCTION(all)
#undef REDUCTION

Array argmax(const array& a, int32_t axis) {
  return boxed(mx::argmax(a, axis));
}
Array softmax(const array& a, int32_t axis) {
  return boxed(mx::softmax(a, axis, /* precise = */ true));
}
Array cumsum(const array& a, int32_t axis) {
  return boxed(mx::cumsum(a, axis));
}
Array argsort(const array& a, int32_t axis) {
  return boxed(mx::argsort(a, axis));
}
Array argpartition(const array& a, int32_t kth, int32_t axis) {
  return boxed(mx::argpartition(a, kth, axis));
}

Array rms_norm(const array& x, Refs weight, float eps) {
  return fused(mx::fast::rms_norm(x, optional(weight), eps), {x});
}
Array layer_norm(const array& x, Refs weight, Refs bias, float eps) {
  return fused(mx::fast::layer_norm(x, optional(weight), optional(bias), eps), {x});
}
Array rope(
    const array& x, int32_t dims, bool traditional, const array& freqs, const array& positions) {
  return fused(
      mx::fast::rope(x, dims, traditional, std::nullopt, 1.0, positions, freqs), {x});
}
Arrays gated_delta_update(Refs inputs) {
  return boxed(mx::fast::gated_delta_update(
      inputs[0].array, inputs[1].array, inputs[2].array, inputs[3].array, inputs[4].array,
      inputs[5].array));
}
Arrays gpu_kernel(
    const GpuKernelSpec& spec, Refs inputs, rust::Slice<const OutputSpec> outputs) {
  auto names = [](const rust::Vec<rust::String>& list) {
    return std::vector<std::string>(list.begin(), list.end());
  };
  // MLX compiles a kernel once for each of its constants.
  static thread_local std::unordered_map<std::string, mx::fast::CustomKernelFunction> kernels;
  auto name = to_string(spec.name);
  auto known = kernels.find(name);
  if (known == kernels.end()) {
    auto ins = names(spec.inputs), outs = names(spec.outputs);
    auto source = to_string(spec.source), header = to_string(spec.header);
    auto kernel = metal_available() ? mx::fast::metal_kernel(name, ins, outs, source, header)
                                    : mx::fast::cuda_kernel(name, ins, outs, source, header);
    known = kernels.emplace(name, std::move(kernel)).first;
  }
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const OutputSpec& output : outputs) {
    shapes.push_back(to_shape(output.shape));
    dtypes.push_back(to_dtype(output.dtype));
  }
  std::vector<std::pair<std::string, mx::fast::TemplateArg>> constants;
  auto constant_names = names(spec.constant_names);
  for (size_t i = 0; i < constant_names.size(); ++i)
    constants.emplace_back(constant_names[i], int(spec.constant_values[i]));
  return boxed(known->second(
      to_vector(inputs), shapes, dtypes, {spec.grid[0], spec.grid[1], spec.grid[2]},
      {spec.group[0], spec.group[1], spec.group[2]}, std::move(constants), std::nullopt, false,
      {}));
}
Array attention(Refs qkv, float scale, rust::Str mask_mode, Refs mask, Refs sinks) {
  auto out = mx::fast::scaled_dot_product_attention(
      qkv[0].array, qkv[1].array, qkv[2].array, scale, to_string(mask_mode), optional(mask),
      optional(sinks));
  auto inputs = to_vector(qkv);
  if (!mask.empty()) inputs.push_back(mask[0].array);
  return fused(std::move(out), std::move(inputs));
}

Array quantized_matmul(
    const array& x, Refs w_scales, Refs biases, bool transpose, const QuantSpec& spec) {
  return boxed(mx::quantized_matmul(
      x, w_scales[0].array, w_scales[1].array, optional(biases), transpose, spec.group_size,
      spec.bits, to_string(spec.mode)));
}
Array gather_quantized_matmul(
    const array& x, Refs w_scales_indices, Refs biases, bool is_sorted, const QuantSpec& spec) {
  const array &w = w_scales_indices[0].array, &scales = w_scales_indices[1].array,
              &indices = w_scales_indices[2].array;
  return boxed(mx::gather_qmm(
      x, w, scales, optional(biases), std::nullopt, indices, true, spec.group_size, spec.bits,
      to_string(spec.mode), std::nullopt, is_sorted));
}
Array gather_matmul(const array& x, const array& w, const array& indices, bool is_sorted) {
  return boxed(mx::gather_mm(x, mx::swapaxes(w, -1, -2), std::nullopt, indices, is_sorted));
}
Arrays quantize(const array& w, const QuantSpec& spec) {
  return boxed(mx::quantize(w, spec.group_size, spec.bits, to_string(spec.mode)));
}
Array dequantize(
    const array& w, const array& scales, Refs biases, const QuantSpec& spec, uint8_t dtype) {
  return boxed(mx::dequantize(
      w, scales, optional(biases), spec.group_size, spec.bits, to_string(spec.mode), std::nullopt,
      to_dtype(dtype)));
}

bool default_device_is_gpu() {
  return mx::default_device() == mx::Device::gpu;
}
void set_default_device_gpu(bool gpu) {
  mx::set_default_device(gpu ? mx::Device::gpu : mx::Device::cpu);
}
void exit_now(int32_t code) {
  ::_exit(code);
}
bool metal_available() {
  return mx::metal::is_available();
}
bool gpu_available() {
  return mx::is_available(mx::Device::gpu);
}
rust::String version() {
  return mx::version();
}
size_t active_bytes() {
  return mx::get_active_memory();
}
size_t peak_bytes() {
  return mx::get_peak_memory();
}
void reset_peak() {
  mx::reset_peak_memory();
}
size_t cache_bytes() {
  return mx::get_cache_memory();
}
size_t set_memory_limit(size_t bytes) {
  return mx::set_memory_limit(bytes);
}
size_t set_cache_limit(size_t bytes) {
  return mx::set_cache_limit(bytes);
}
size_t set_wired_limit(size_t bytes) {
  return mx::set_wired_limit(bytes);
}
size_t recommended_bytes() {
  if (!gpu_available()) {
    return 0;
  }
  const auto& info = mx::device_info(mx::Device(mx::Device::gpu));
  auto found = info.find("max_recommended_working_set_size");
  if (found == info.end() || !std::holds_alternative<size_t>(found->second)) {
    return 0;
  }
  return std::get<size_t>(found->second);
}
void clear_cache() {
  mx::clear_cache();
  // Without a GPU MLX allocates from the C library, which keeps freed pages for itself.
#if defined(__GLIBC__)
  malloc_trim(0);
#elif defined(__APPLE__)
  malloc_zone_pressure_relief(nullptr, 0);
#endif
}

Arrays custom(
    Refs inputs, rust::Slice<const OutputSpec> outputs, rust::Str name, rust::Box<Kernel> kernel) {
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const OutputSpec& output : outputs) {
    shapes.push_back(to_shape(output.shape));
    dtypes.push_back(to_dtype(output.dtype));
  }
  auto stream = mx::default_stream(mx::Device::cpu);
  auto primitive = std::make_shared<CustomPrimitive>(stream, to_string(name), std::move(kernel));
  return boxed(array::make_arrays(std::move(shapes), dtypes, primitive, to_vector(inputs)));
}

std::unique_ptr<RawGroup> native_group(rust::Box<Link> link) {
  return std::make_unique<RawGroup>(std::make_shared<NativeGroup>(std::move(link)));
}
bool stock_group_available(rust::Str backend) {
  return md::is_available(to_string(backend));
}
std::unique_ptr<RawGroup> stock_group(rust::Str backend) {
  md::clear_backends();
  return std::make_unique<RawGroup>(md::init(/* strict = */ true, to_string(backend)));
}
std::unique_ptr<RawGroup> copy_group(const RawGroup& group) {
  return std::make_unique<RawGroup>(group);
}
int32_t group_rank(const RawGroup& group) {
  return group.rank();
}
int32_t group_size(const RawGroup& group) {
  return group.size();
}
Array group_all_sum(const RawGroup& group, const array& a) {
  return boxed(md::all_sum(a, group));
}
Array group_all_gather(const RawGroup& group, const array& a) {
  return boxed(md::all_gather(a, group));
}
Array group_send(const RawGroup& group, const array& a, int32_t to) {
  return boxed(md::send(a, to, group));
}
Array group_recv(const RawGroup& group, Dims shape, uint8_t dtype, int32_t from) {
  return boxed(md::recv(to_shape(shape), to_dtype(dtype), from, group));
}

} // namespace jackalope
