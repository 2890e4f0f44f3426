#pragma once

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace levin::optim {

/// Capabilities of an optimizer that strategies and precisions ask for.
struct OptimizerCapabilities {
  /// Each element's update depends on that element's gradient and state only, so that a parameter may be split.
  bool element_wise = false;
  /// A step can be skipped, and gradients be unscaled, by what a device tensor says (`FusedOptimizer::fused_step`).
  bool found_inf = false;
  /// The learning rate can be a device tensor, as CUDA graphs need.
  bool tensor_learning_rate = false;
  /// `step` evaluates the loss itself, several times.
  bool needs_closure = false;
  /// Each parameter's update depends on that parameter's gradient and state only, so that ranks may have some each.
  bool tensor_wise = false;
};

/// An optimizer of the user's own may derive from this as well, to say what it can do.
class DeclaresCapabilities {
 public:
  virtual ~DeclaresCapabilities() = default;
  virtual OptimizerCapabilities capabilities() const = 0;
};

/// Returns what the optimizer declares, what is known of LibTorch's, or no capabilities for any other.
OptimizerCapabilities capabilities_of(const torch::optim::Optimizer& optimizer);

}  // namespace levin::optim
