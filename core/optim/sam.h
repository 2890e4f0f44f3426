#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/optim/wrapped_optimizer.h>

#include <memory>

namespace levin::optim {

/// Options of SAM, with the names and defaults of its paper.
struct SAMOptions {
  double rho = 0.05;      ///< length of the step up
  bool adaptive = false;  ///< measures it against the size of each weight (ASAM), for which rho is ten times as large

  bool operator==(const SAMOptions&) const = default;
  static void describe(Schema<SAMOptions>& schema);
};

/// Sharpness-aware minimization: another optimizer steps with the gradients of where the loss is highest nearby (Foret
/// et al., 2021, arXiv:2010.01412; adaptive: Kwon et al., 2021, arXiv:2102.11600). Each step evaluates the loss twice,
/// on the same batch. The length of the step up is that of all gradients together, so that strategies which divide
/// parameters refuse it.
class SAM final : public WrappedOptimizer {
 public:
  using Options = SAMOptions;

  explicit SAM(std::shared_ptr<torch::optim::Optimizer> base, const Options& options = {});

  /// Returns the loss before the step. Throws levin::Error without a closure, which leaves fresh gradients behind.
  at::Tensor step(LossClosure closure = nullptr) override;
  OptimizerCapabilities capabilities() const override { return {.needs_closure = true}; }

 private:
  Options options_;
};

}  // namespace levin::optim
