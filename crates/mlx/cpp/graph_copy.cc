#include "graph_copy.h"

#include <unordered_map>

#include "mlx/primitives.h"

namespace jackalope {
namespace mx = mlx::core;
using mx::array;

namespace {

// The nodes of a graph: constants, and operations after those that they read.
struct Nodes {
  std::unordered_map<std::uintptr_t, bool> seen;
  std::vector<array> constants;
  std::vector<array> operations;

  void add(const array& a) {
    if (!seen.emplace(a.id(), true).second) return;
    if (!a.has_primitive()) {
      constants.push_back(a);
      return;
    }
    for (const array& sibling : a.siblings()) seen.emplace(sibling.id(), true);
    for (const array& input : a.inputs()) add(input);
    operations.push_back(a);
  }
};

} // namespace

GraphCopy::GraphCopy(const std::vector<array>& inputs, const std::vector<array>& outputs) {
  Nodes nodes;
  for (const array& input : inputs) nodes.seen.emplace(input.id(), true);
  for (const array& output : outputs) nodes.add(output);
  std::unordered_map<std::uintptr_t, uint32_t> values;
  auto number = [&](const array& a) { values.emplace(a.id(), uint32_t(values.size())); };
  for (const array& input : inputs) number(input);
  for (const array& constant : nodes.constants) number(constant);
  for (const array& node : nodes.operations) {
    for (const array& input : node.inputs()) sources_.push_back(values.at(input.id()));
    auto results = node.outputs();
    operations_.push_back(
        {node.primitive_ptr(), uint32_t(node.inputs().size()), uint32_t(results.size())});
    for (const array& result : results) {
      number(result);
      shapes_.push_back(result.shape());
      dtypes_.push_back(result.dtype());
    }
  }
  for (const array& output : outputs) outputs_.push_back(values.at(output.id()));
  constants_ = std::move(nodes.constants);
}

std::vector<array> GraphCopy::apply(const std::vector<array>& inputs) const {
  std::vector<array> values;
  values.reserve(inputs.size() + constants_.size() + shapes_.size());
  values.insert(values.end(), inputs.begin(), inputs.end());
  values.insert(values.end(), constants_.begin(), constants_.end());
  auto source = sources_.begin();
  size_t result = 0;
  for (const Operation& operation : operations_) {
    std::vector<array> read;
    read.reserve(operation.num_inputs);
    for (uint32_t i = 0; i < operation.num_inputs; ++i) read.push_back(values[*source++]);
    if (operation.num_outputs == 1) {
      values.emplace_back(shapes_[result], dtypes_[result], operation.primitive, std::move(read));
    } else {
      auto first = result, last = result + operation.num_outputs;
      auto results = array::make_arrays(
          {shapes_.begin() + first, shapes_.begin() + last},
          {dtypes_.begin() + first, dtypes_.begin() + last}, operation.primitive, read);
      values.insert(values.end(), results.begin(), results.end());
    }
    result += operation.num_outputs;
  }
  std::vector<array> outputs;
  outputs.reserve(outputs_.size());
  for (uint32_t output : outputs_) outputs.push_back(values[output]);
  return outputs;
}

} // namespace jackalope
