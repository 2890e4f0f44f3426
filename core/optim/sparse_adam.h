#pragma once

#include <levin/core/optim/element_optimizer.h>

#include <array>
#include <span>
#include <vector>

namespace levin::optim {

/// Options of SparseAdam, with the names and defaults of torch.optim.SparseAdam.
struct SparseAdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  bool maximize = false;

  bool operator==(const SparseAdamOptions&) const = default;
  static void describe(Schema<SparseAdamOptions>& schema);
};

/// Adam for sparse gradients alone, such as those of an Embedding with `sparse`, as torch.optim.SparseAdam: rows that a
/// gradient does not have keep their values and their means.
class SparseAdam final : public ElementOptimizerOf<SparseAdamOptions> {
 public:
  explicit SparseAdam(std::vector<at::Tensor> params, const SparseAdamOptions& options = {});
  explicit SparseAdam(Groups groups);

  GradientLayouts gradient_layouts(size_t /*group*/) const override { return GradientLayouts::kSparse; }
  /// Parts of a parameter, which strategies divide, have dense gradients.
  OptimizerCapabilities capabilities() const override { return {}; }

 protected:
  void update_parameter(const SparseAdamOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                        const std::array<at::Tensor, 3>& states) override;
  std::span<const StateField> state_fields(size_t group) const override;
};

}  // namespace levin::optim
