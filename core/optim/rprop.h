#pragma once

#include <levin/core/optim/element_optimizer.h>

#include <array>
#include <span>
#include <vector>

namespace levin::optim {

/// Options of Rprop, with the names and defaults of torch.optim.Rprop.
struct RpropOptions {
  double lr = 1e-2;
  std::array<double, 2> etas = {0.5, 1.2};
  std::array<double, 2> step_sizes = {1e-6, 50};
  bool maximize = false;

  bool operator==(const RpropOptions&) const = default;
  static void describe(Schema<RpropOptions>& schema);
};

/// Adapts a step size for each element by the sign of its gradients, as torch.optim.Rprop (Riedmiller and Braun, 1993).
/// For whole batches: signs of small ones say little.
class Rprop final : public ElementOptimizerOf<RpropOptions> {
 public:
  explicit Rprop(std::vector<at::Tensor> params, const RpropOptions& options = {});
  explicit Rprop(Groups groups);

 protected:
  void update_parameter(const RpropOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                        const std::array<at::Tensor, 3>& states) override;
  std::span<const StateField> state_fields(size_t group) const override;
  double initial_value(size_t group, const StateField& field) const override;
};

}  // namespace levin::optim
