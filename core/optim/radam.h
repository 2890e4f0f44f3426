#pragma once

#include <levin/core/optim/element_optimizer.h>

#include <array>
#include <span>
#include <vector>

namespace levin::optim {

/// Options of RAdam, with the names and defaults of torch.optim.RAdam.
struct RAdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;              ///< an L2 penalty, added to the gradient
  bool decoupled_weight_decay = false;  ///< decay the weights themselves, as AdamW does
  bool maximize = false;

  bool operator==(const RAdamOptions&) const = default;
  static void describe(Schema<RAdamOptions>& schema);
};

/// Adam whose adaptive rate is rectified in the first steps, as torch.optim.RAdam (Liu et al., 2020, arXiv:1908.03265).
class RAdam final : public ElementOptimizerOf<RAdamOptions> {
 public:
  explicit RAdam(std::vector<at::Tensor> params, const RAdamOptions& options = {});
  explicit RAdam(Groups groups);

 protected:
  void update_parameter(const RAdamOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                        const std::array<at::Tensor, 3>& states) override;
  std::span<const StateField> state_fields(size_t group) const override;
};

}  // namespace levin::optim
