#pragma once

#include <levin/core/optim/fused_optimizer.h>

#include <span>
#include <vector>

namespace levin::optim {

/// Options of Adagrad, with the names and defaults of torch.optim.Adagrad.
struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;  ///< an L2 penalty, added to the gradient
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool maximize = false;

  bool operator==(const AdagradOptions&) const = default;
  static void describe(Schema<AdagradOptions>& schema);
};

/// Adagrad (Duchi, Hazan and Singer, 2011). Takes sparse gradients without weight decay.
class Adagrad final : public FusedOptimizerOf<AdagradOptions> {
 public:
  explicit Adagrad(std::vector<at::Tensor> params, const AdagradOptions& options = {});
  explicit Adagrad(Groups groups);

  GradientLayouts gradient_layouts(size_t group) const override;

 protected:
  void update(size_t group, TensorLists& lists, const KernelScaling& scaling) override;
  bool takes_learning_rate_tensor() const override { return true; }
  std::span<const StateField> state_fields(size_t group) const override;
  double initial_value(size_t group, const StateField& field) const override;
};

}  // namespace levin::optim
