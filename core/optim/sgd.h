#pragma once

#include <levin/core/optim/fused_optimizer.h>

#include <span>
#include <vector>

namespace levin::optim {

/// Options of SGD, with the names and defaults of torch.optim.SGD.
struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  ///< an L2 penalty, added to the gradient
  bool nesterov = false;    ///< needs a momentum and no dampening
  bool maximize = false;

  bool operator==(const SGDOptions&) const = default;
  static void describe(Schema<SGDOptions>& schema);
};

/// Stochastic gradient descent with momentum, as torch.optim.SGD computes it. Takes sparse gradients without momentum
/// and weight decay.
class SGD final : public FusedOptimizerOf<SGDOptions> {
 public:
  explicit SGD(std::vector<at::Tensor> params, const SGDOptions& options = {});
  explicit SGD(Groups groups);

  GradientLayouts gradient_layouts(size_t group) const override;

 protected:
  void update(size_t group, TensorLists& lists, const KernelScaling& scaling) override;
  bool takes_learning_rate_tensor() const override { return true; }
  std::span<const StateField> state_fields(size_t group) const override;
  bool counts_steps() const override { return false; }
  /// The first momentum is the gradient itself, without dampening.
  bool distinguishes_first_step() const override { return true; }
};

}  // namespace levin::optim
