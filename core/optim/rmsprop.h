#pragma once

#include <levin/core/optim/element_optimizer.h>

#include <array>
#include <span>
#include <vector>

namespace levin::optim {

/// Options of RMSprop, with the names and defaults of torch.optim.RMSprop.
struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;  ///< an L2 penalty, added to the gradient
  double momentum = 0;
  bool centered = false;  ///< divide by an estimate of the standard deviation
  bool maximize = false;

  bool operator==(const RMSpropOptions&) const = default;
  static void describe(Schema<RMSpropOptions>& schema);
};

/// Divides the gradient by a running mean of its size, as torch.optim.RMSprop (Graves, 2013, arXiv:1308.0850).
class RMSprop final : public ElementOptimizerOf<RMSpropOptions> {
 public:
  explicit RMSprop(std::vector<at::Tensor> params, const RMSpropOptions& options = {});
  explicit RMSprop(Groups groups);

 protected:
  void update_parameter(const RMSpropOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                        const std::array<at::Tensor, 3>& states) override;
  std::span<const StateField> state_fields(size_t group) const override;
};

}  // namespace levin::optim
