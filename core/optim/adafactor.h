#pragma once

#include <levin/core/optim/element_optimizer.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace levin::optim {

/// Options of Adafactor, with the names and defaults of torch.optim.Adafactor.
struct AdafactorOptions {
  double lr = 1e-2;  ///< the most that a step may be: step t takes min(lr, 1/√t) of the weights' size
  double beta2_decay = -0.8;
  std::optional<double> eps1 = {};  ///< the least divisor; nothing: the precision of the parameter's type
  double eps2 = 1e-3;               ///< the least size of a parameter's weights
  double d = 1;                     ///< the most that an update's root mean square may be
  double weight_decay = 0;          ///< decoupled
  bool maximize = false;

  bool operator==(const AdafactorOptions&) const = default;
  static void describe(Schema<AdafactorOptions>& schema);
};

/// Adam whose mean squares of a matrix are those of its rows and columns, so that its state is small (Shazeer and
/// Stern, 2018, arXiv:1804.04235), as torch.optim.Adafactor computes it. It needs whole parameters: strategies that
/// divide a model give each to one rank.
class Adafactor final : public ElementOptimizerOf<AdafactorOptions> {
 public:
  explicit Adafactor(std::vector<at::Tensor> params, const AdafactorOptions& options = {});
  explicit Adafactor(Groups groups);
  OptimizerCapabilities capabilities() const override { return {.tensor_wise = true}; }

 protected:
  void update_parameter(const AdafactorOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                        const std::array<at::Tensor, 3>& states) override;
  std::span<const StateField> state_fields(size_t group) const override;
  /// Rows and columns for parameters of two and more dimensions, the whole for the others.
  std::optional<std::vector<int64_t>> state_sizes(size_t group, const StateField& field,
                                                  const at::Tensor& param) const override;
};

}  // namespace levin::optim
