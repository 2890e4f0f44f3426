#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/base/state.h>
#include <levin/core/base/step_scaling.h>
#include <levin/core/base/weight_cast_scope.h>

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

/// A thread's settings before a forward scope, which puts them back.
struct ForwardSettings {
  bool autocast = false;
  at::ScalarType autocast_type = at::kFloat;
};

/// The number format of a run: converts module and inputs, scopes the forward pass, scales the loss and takes the scale
/// out again. Composes with every strategy that says it supports it.
class Precision : public Configurable, public Stateful {
 public:
  /// Returns the name in YAML: "32-true".
  virtual std::string name() const = 0;
  /// Returns whether forward computes in 16 bits.
  virtual bool is_half() const { return false; }
  /// Returns the 16-bit type of forward when parameters have more bits; otherwise nothing.
  virtual std::optional<at::ScalarType> mixed_type() const { return std::nullopt; }
  /// Returns whether backward starts from a scaled loss, so that gradients wait for `unscale`.
  virtual bool scales_loss() const { return false; }

  /// Sets this rank's device, before anything else. Throws levin::Error when the device lacks the format.
  virtual void set_up(const at::Device& /*device*/) {}
  /// Converts parameters and buffers, once, before the strategy wraps the module.
  virtual void convert_module(torch::nn::Module& /*module*/) {}
  /// Converts one tensor of a batch; integers stay.
  virtual at::Tensor convert_input(const at::Tensor& tensor) const { return tensor; }
  /// Enters the settings of a forward pass on the calling thread: autocast, and the default type of new floating-point
  /// tensors. Returns the former ones, for `exit_forward`.
  virtual ForwardSettings enter_forward() { return {}; }
  virtual void exit_forward(const ForwardSettings& /*before*/) {}

  /// Returns the loss that backward starts from.
  virtual at::Tensor scale_loss(const at::Tensor& loss) { return loss; }
  /// Takes the scale out of the optimizer's gradients before its step, once a step however often it is called. Returns
  /// what is left for the step to do.
  virtual StepScaling unscale(torch::optim::Optimizer& /*optimizer*/) { return {}; }
  /// Notes that the optimizer took its step: gradients that come now have a scale again.
  virtual void note_step(const torch::optim::Optimizer& /*optimizer*/) {}
  /// Puts the scale back into the optimizer's gradients where they have none, since a backward will add to them: they
  /// were unscaled, such as to be clipped, and no step followed; or, `stepped`, a step has left them there.
  virtual void restore_scale(torch::optim::Optimizer& /*optimizer*/, bool /*stepped*/) {}
  /// Ends a window without steps: forgets what `unscale` found of gradients that no step has used.
  virtual void abandon_window() {}
  /// Notes, before `end_window`, an optimizer whose gradients, with the scale, wait for a step in a later window.
  virtual void note_waiting(torch::optim::Optimizer& /*optimizer*/) {}
  /// Adapts the scale after the optimizer steps of a window.
  virtual void end_window() {}
  /// Returns the number of optimizer steps skipped since the last call because gradients were not finite. Without
  /// `wait`, only those known without waiting for a device: on the CPU all, on others none.
  virtual int64_t take_skipped_steps(bool /*wait*/) { return 0; }
};

/// Keeps a precision's forward settings on this thread during its lifetime.
class ForwardScope {
 public:
  explicit ForwardScope(Precision& precision)
      : precision_(precision), casts_(precision.mixed_type().has_value()), before_(precision.enter_forward()) {}
  ~ForwardScope() { precision_.exit_forward(before_); }
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

 private:
  Precision& precision_;
  WeightCastScope casts_;  // weights change with the step: their copies in 16 bits are of this forward only
  ForwardSettings before_;
};

}  // namespace levin
