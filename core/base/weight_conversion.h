#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace levin {

/// Whether this thread is converting a weight in a WeightCastScope, which happens or not by what ran before.
bool is_converting_weight();

/// In which a WeightCastScope takes leaves for activations: those of a forward that runs again, which were none before.
class ActivationLeavesScope {
 public:
  explicit ActivationLeavesScope(std::vector<at::Tensor> activations);
  ~ActivationLeavesScope();
  ActivationLeavesScope(const ActivationLeavesScope&) = delete;
  ActivationLeavesScope& operator=(const ActivationLeavesScope&) = delete;

 private:
  const std::vector<at::Tensor> activations_;
};

}  // namespace levin
