#pragma once

#include <levin/core/optim/element_optimizer.h>

#include <array>
#include <span>
#include <vector>

namespace levin::optim {

/// Options of NAdam, with the names and defaults of torch.optim.NAdam.
struct NAdamOptions {
  double lr = 2e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;  ///< an L2 penalty, added to the gradient
  double momentum_decay = 4e-3;
  bool decoupled_weight_decay = false;  ///< decay the weights themselves, as AdamW does
  bool maximize = false;

  bool operator==(const NAdamOptions&) const = default;
  static void describe(Schema<NAdamOptions>& schema);
};

/// Adam with Nesterov's momentum, as torch.optim.NAdam (Dozat, 2016).
class NAdam final : public ElementOptimizerOf<NAdamOptions> {
 public:
  explicit NAdam(std::vector<at::Tensor> params, const NAdamOptions& options = {});
  explicit NAdam(Groups groups);

 protected:
  void update_parameter(const NAdamOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                        const std::array<at::Tensor, 3>& states) override;
  std::span<const StateField> state_fields(size_t group) const override;
  double initial_value(size_t group, const StateField& field) const override;
};

}  // namespace levin::optim
