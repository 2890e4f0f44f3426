#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/base/state.h>
#include <levin/core/base/step_scaling.h>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace levin {

/// What a forward scope found on its thread, and puts back.
struct ForwardSettings {
  bool autocast = false;
  bool autocast_cache = false;
  at::ScalarType autocast_type = at::kFloat;
};

/// The number format of a run: converts module and inputs, scopes the forward pass, scales the loss and takes the scale
/// out again. Composes with every strategy that says it supports it.
class Precision : public Configurable, public Stateful {
 public:
  /// The name in YAML: "32-true".
  virtual std::string name() const = 0;
  /// Whether forward computes in 16 bits.
  virtual bool is_half() const { return false; }
  /// The 16-bit type that forward computes in while parameters have more bits; nothing where they have not.
  virtual std::optional<at::ScalarType> mixed_type() const { return std::nullopt; }
  /// Whether backward starts from a scaled loss, so that gradients wait for `unscale`.
  virtual bool scales_loss() const { return false; }

  /// The device of this rank, before anything else. Throws levin::Error where it lacks the format.
  virtual void set_up(const at::Device& /*device*/) {}
  /// Converts parameters and buffers, once, before the strategy wraps the module.
  virtual void convert_module(torch::nn::Module& /*module*/) {}
  /// Converts one tensor of a batch; integers stay.
  virtual at::Tensor convert_input(const at::Tensor& tensor) const { return tensor; }
  /// Around whatever runs the module, on the thread that runs it: autocast, and the default floating-point type of
  /// tensors made in it. `exit_forward` gets what `enter_forward` gave.
  virtual ForwardSettings enter_forward() { return {}; }
  virtual void exit_forward(const ForwardSettings& /*before*/) {}

  /// The loss that backward starts from.
  virtual at::Tensor scale_loss(const at::Tensor& loss) { return loss; }
  /// After the last backward of a window: takes the scale out of the optimizer's gradients, once a window however often
  /// it is called, and says what the step still has to do.
  virtual StepScaling unscale(torch::optim::Optimizer& /*optimizer*/) { return {}; }
  /// The window ends without steps: forgets what `unscale` found.
  virtual void abandon_window() {}
  /// After the optimizer steps of a window: adapts the scale.
  virtual void end_window() {}
  /// How many optimizer steps were skipped since it was last asked, because gradients were not finite. Without `wait`
  /// it gives those that are known without waiting for a device: on the CPU all, on others none.
  virtual int64_t take_skipped_steps(bool /*wait*/) { return 0; }
};

/// Runs a scope under a precision's forward settings.
class ForwardScope {
 public:
  explicit ForwardScope(Precision& precision) : precision_(precision), before_(precision.enter_forward()) {}
  ~ForwardScope() { precision_.exit_forward(before_); }
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

 private:
  Precision& precision_;
  ForwardSettings before_;
};

}  // namespace levin
