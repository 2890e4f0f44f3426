#pragma once

#include <levin/core/optim/fused_optimizer.h>

#include <array>
#include <span>
#include <string>
#include <vector>

namespace levin::optim {

/// Options of Adam, with the names and defaults of torch.optim.Adam.
struct AdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;  ///< an L2 penalty, added to the gradient
  bool amsgrad = false;
  bool maximize = false;
  bool fast_kernel = false;  ///< of Levin's own on CPUs, see describe(); differs from LibTorch's by rounding

  bool operator==(const AdamOptions&) const = default;
  static void describe(Schema<AdamOptions>& schema);
};

/// Options of AdamW, with the names and defaults of torch.optim.AdamW.
struct AdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;  ///< decoupled: the weights shrink by lr * weight_decay in every step
  bool amsgrad = false;
  bool maximize = false;
  bool fast_kernel = false;  ///< of Levin's own on CPUs, see describe(); differs from LibTorch's by rounding

  bool operator==(const AdamWOptions&) const = default;
  static void describe(Schema<AdamWOptions>& schema);
};

/// Adam (Kingma and Ba, 2015, arXiv:1412.6980), with AMSGrad (Reddi et al., 2018, arXiv:1904.09237) on request.
class Adam final : public FusedOptimizerOf<AdamOptions> {
 public:
  explicit Adam(std::vector<at::Tensor> params, const AdamOptions& options = {});
  explicit Adam(Groups groups);

 protected:
  void update(size_t group, TensorLists& lists, const KernelScaling& scaling) override;
  bool takes_learning_rate_tensor() const override { return true; }
  std::span<const StateField> state_fields(size_t group) const override;
};

/// Adam with decoupled weight decay (Loshchilov and Hutter, 2019, arXiv:1711.05101).
class AdamW final : public FusedOptimizerOf<AdamWOptions> {
 public:
  explicit AdamW(std::vector<at::Tensor> params, const AdamWOptions& options = {});
  explicit AdamW(Groups groups);

 protected:
  void update(size_t group, TensorLists& lists, const KernelScaling& scaling) override;
  bool takes_learning_rate_tensor() const override { return true; }
  std::span<const StateField> state_fields(size_t group) const override;
};

}  // namespace levin::optim
