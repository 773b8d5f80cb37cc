// A graph that is built once and then copied.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "mlx/mlx.h"

namespace jackalope {

// The operations between some arrays and those that were computed from them, in one piece of memory, so that a
// copy for other arrays of the same shapes reads little.
class GraphCopy {
 public:
  // Takes the graph of `outputs` down to `inputs`. What it has besides is part of every copy.
  GraphCopy(
      const std::vector<mlx::core::array>& inputs, const std::vector<mlx::core::array>& outputs);

  // Returns what was computed from the inputs, computed from these.
  std::vector<mlx::core::array> apply(const std::vector<mlx::core::array>& inputs) const;

 private:
  struct Operation {
    std::shared_ptr<mlx::core::Primitive> primitive;
    uint32_t num_inputs;
    uint32_t num_outputs;
  };

  std::vector<mlx::core::array> constants_;
  // Each reads the next `num_inputs` of `sources_` and adds `num_outputs` values, after inputs and constants.
  std::vector<Operation> operations_;
  std::vector<uint32_t> sources_;
  std::vector<mlx::core::Shape> shapes_;
  std::vector<mlx::core::Dtype> dtypes_;
  std::vector<uint32_t> outputs_;
};

} // namespace jackalope
