#pragma once

#include <ATen/ops/empty.h>

#include <cmath>
#include <cstdint>

namespace levin::testing {

/// Weights and data of tests/oracles/pruning_oracles.py.
inline at::Tensor pruning_formula(at::IntArrayRef shape, int phase) {
  at::Tensor values = at::empty(shape, at::kDouble);
  for (int64_t i = 0; i < values.numel(); ++i)
    values.data_ptr<double>()[i] = std::sin(0.7 * static_cast<double>(i) * (phase + 1) + phase);
  return values;
}

}  // namespace levin::testing
