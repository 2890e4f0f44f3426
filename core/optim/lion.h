#pragma once

#include <levin/core/optim/element_optimizer.h>

#include <array>
#include <span>
#include <vector>

namespace levin::optim {

/// Options of Lion, with the names and defaults of its paper's code.
struct LionOptions {
  double lr = 1e-4;
  std::array<double, 2> betas = {0.9, 0.99};
  double weight_decay = 0;  ///< decoupled
  bool maximize = false;

  bool operator==(const LionOptions&) const = default;
  static void describe(Schema<LionOptions>& schema);
};

/// Steps by the sign of a mean of the gradient (Chen et al., 2023, arXiv:2302.06675). Its learning rate is a third to a
/// tenth of AdamW's, its weight decay as much larger.
class Lion final : public ElementOptimizerOf<LionOptions> {
 public:
  explicit Lion(std::vector<at::Tensor> params, const LionOptions& options = {});
  explicit Lion(Groups groups);

 protected:
  void update_parameter(const LionOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                        const std::array<at::Tensor, 3>& states) override;
  std::span<const StateField> state_fields(size_t group) const override;
};

}  // namespace levin::optim
