#pragma once

#include <levin/core/optim/element_optimizer.h>

#include <array>
#include <span>
#include <vector>

/// Optimizers for large batches, which scale the step of each parameter by the sizes of its weights and of its update.
/// They need whole parameters: strategies that divide a model give each to one rank.
namespace levin::optim {

/// Options of LAMB, with the names and defaults of its paper.
struct LAMBOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-6;
  double weight_decay = 0.01;  ///< decoupled
  bool always_adapt = false;   ///< also the parameters without a weight decay, such as biases

  bool operator==(const LAMBOptions&) const = default;
  static void describe(Schema<LAMBOptions>& schema);
};

/// Adam whose update of a parameter has the size of its weights (You et al., 2020, arXiv:1904.00962).
class LAMB final : public ElementOptimizerOf<LAMBOptions> {
 public:
  explicit LAMB(std::vector<at::Tensor> params, const LAMBOptions& options = {});
  explicit LAMB(Groups groups);
  OptimizerCapabilities capabilities() const override { return {.tensor_wise = true}; }

 protected:
  void update_parameter(const LAMBOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                        const std::array<at::Tensor, 3>& states) override;
  std::span<const StateField> state_fields(size_t group) const override;
};

/// Options of LARS, with the names of its paper and timm's defaults.
struct LARSOptions {
  double lr = 1;
  double momentum = 0.9;
  double dampening = 0;
  double weight_decay = 0;  ///< an L2 penalty, added to the gradient
  bool nesterov = false;
  double trust_coeff = 1e-3;  ///< size of a step of learning rate 1 as a part of the weights' size
  double eps = 1e-8;
  bool always_adapt = false;  ///< also the parameters without a weight decay, such as biases

  bool operator==(const LARSOptions&) const = default;
  static void describe(Schema<LARSOptions>& schema);
};

/// Stochastic gradient descent with a rate for each parameter by the sizes of its weights and gradient (You et al.,
/// 2017, arXiv:1708.03888).
class LARS final : public ElementOptimizerOf<LARSOptions> {
 public:
  explicit LARS(std::vector<at::Tensor> params, const LARSOptions& options = {});
  explicit LARS(Groups groups);
  OptimizerCapabilities capabilities() const override { return {.tensor_wise = true}; }

 protected:
  void update_parameter(const LARSOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                        const std::array<at::Tensor, 3>& states) override;
  std::span<const StateField> state_fields(size_t group) const override;
};

}  // namespace levin::optim
