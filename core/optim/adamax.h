#pragma once

#include <levin/core/optim/element_optimizer.h>

#include <array>
#include <span>
#include <vector>

namespace levin::optim {

/// Options of Adamax, with the names and defaults of torch.optim.Adamax.
struct AdamaxOptions {
  double lr = 2e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;  ///< an L2 penalty, added to the gradient
  bool maximize = false;

  bool operator==(const AdamaxOptions&) const = default;
  static void describe(Schema<AdamaxOptions>& schema);
};

/// Adam with the largest gradient in the place of the mean square, as torch.optim.Adamax (Kingma and Ba, 2015,
/// arXiv:1412.6980).
class Adamax final : public ElementOptimizerOf<AdamaxOptions> {
 public:
  explicit Adamax(std::vector<at::Tensor> params, const AdamaxOptions& options = {});
  explicit Adamax(Groups groups);

 protected:
  void update_parameter(const AdamaxOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                        const std::array<at::Tensor, 3>& states) override;
  std::span<const StateField> state_fields(size_t group) const override;
};

}  // namespace levin::optim
