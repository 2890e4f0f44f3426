#pragma once

#include <levin/core/optim/element_optimizer.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace levin::optim {

/// Options of Muon, with the names and defaults of torch.optim.Muon.
struct MuonOptions {
  double lr = 1e-3;
  double weight_decay = 0.1;  ///< decoupled
  double momentum = 0.95;
  bool nesterov = true;
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};
  double eps = 1e-7;
  int64_t ns_steps = 5;
  /// Factor of the learning rate of a matrix of A rows and B columns. original: √max(1, A/B); match_rms_adamw:
  /// 0.2·√max(A, B), with which learning rate and weight decay may be those of AdamW.
  std::string adjust_lr_fn = "original";
  bool bfloat16 = true;       ///< orthogonalizes in bfloat16, as PyTorch does; false: in the parameter's type
  bool orthogonalize = true;  ///< false: AdamW, for embeddings and the last layer
  std::array<double, 2> adamw_betas = {0.9, 0.999};
  double adamw_eps = 1e-8;

  bool operator==(const MuonOptions&) const = default;
  static void describe(Schema<MuonOptions>& schema);
};

/// Momentum whose steps are orthogonal matrices (Jordan et al., 2024), as torch.optim.Muon computes it. Parameters that
/// are not matrices, and groups with `orthogonalize` false, take steps of AdamW with the same learning rate and weight
/// decay. It needs whole matrices: strategies that divide a model give each to one rank.
class Muon final : public ElementOptimizerOf<MuonOptions> {
 public:
  explicit Muon(std::vector<at::Tensor> params, const MuonOptions& options = {});
  explicit Muon(Groups groups);
  OptimizerCapabilities capabilities() const override { return {.tensor_wise = true}; }

 protected:
  void update_parameter(const MuonOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                        const std::array<at::Tensor, 3>& states) override;
  std::span<const StateField> state_fields(size_t group) const override;
  /// The momentum of matrices, the two means of AdamW for the others.
  std::optional<std::vector<int64_t>> state_sizes(size_t group, const StateField& field,
                                                  const at::Tensor& param) const override;
};

}  // namespace levin::optim
