#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/base/state.h>
#include <levin/core/base/step_scaling.h>

#include <ATen/core/Tensor.h>

#include <string>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace levin {

/// The number format of a run: converts module and inputs, scopes the forward pass, scales the loss and takes the scale
/// out again. Composes with every strategy that says it supports it.
class Precision : public Buildable, public Stateful {
 public:
  /// The name in YAML: "32-true".
  virtual std::string name() const = 0;

  /// Converts parameters and buffers, once, before the strategy wraps the module.
  virtual void convert_module(torch::nn::Module& module) = 0;
  /// Converts one tensor of a batch; integers stay.
  virtual at::Tensor convert_input(const at::Tensor& tensor) const = 0;
  /// Around whatever runs the module: autocast and the default floating-point type of tensors made in it.
  virtual void enter_forward() {}
  virtual void exit_forward() {}
  /// The loss that backward starts from.
  virtual at::Tensor scale_loss(const at::Tensor& loss) { return loss; }
  /// After the last backward of a window: takes the scale out of the gradients where hooks or clipping must see them,
  /// and says what the optimizer step still has to do.
  virtual StepScaling unscale(torch::optim::Optimizer& /*optimizer*/) { return {}; }
  /// After every optimizer step of a window: adapts the scale.
  virtual void after_step() {}
};

/// Runs a scope under a precision's forward settings.
class ForwardScope {
 public:
  explicit ForwardScope(Precision& precision) : precision_(precision) { precision_.enter_forward(); }
  ~ForwardScope() { precision_.exit_forward(); }
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

 private:
  Precision& precision_;
};

}  // namespace levin
