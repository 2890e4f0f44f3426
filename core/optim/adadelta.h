#pragma once

#include <levin/core/optim/element_optimizer.h>

#include <array>
#include <span>
#include <vector>

namespace levin::optim {

/// Options of Adadelta, with the names and defaults of torch.optim.Adadelta.
struct AdadeltaOptions {
  double lr = 1;
  double rho = 0.9;
  double eps = 1e-6;
  double weight_decay = 0;  ///< an L2 penalty, added to the gradient
  bool maximize = false;

  bool operator==(const AdadeltaOptions&) const = default;
  static void describe(Schema<AdadeltaOptions>& schema);
};

/// Scales each step by the size of those before it, as torch.optim.Adadelta (Zeiler, 2012, arXiv:1212.5701).
class Adadelta final : public ElementOptimizerOf<AdadeltaOptions> {
 public:
  explicit Adadelta(std::vector<at::Tensor> params, const AdadeltaOptions& options = {});
  explicit Adadelta(Groups groups);

 protected:
  void update_parameter(const AdadeltaOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                        const std::array<at::Tensor, 3>& states) override;
  std::span<const StateField> state_fields(size_t group) const override;
};

}  // namespace levin::optim
