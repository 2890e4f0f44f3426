#pragma once

#include <levin/core/base/state.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace levin {

class Module;

/// A running average of a module's floating-point parameters, in their own types, kept beside the module. `exchange`
/// swaps the two in place, so that the module computes with the average and its training weights wait here.
class AveragedWeights {
 public:
  /// There is no average, and no module.
  void reset();
  /// Works on this module from here on. Moves what was loaded to its devices; throws levin::Error when that is of other
  /// parameters.
  void bind(Module& module);

  /// Whether there is no average yet.
  bool empty() const { return beside_.empty(); }
  /// Whether the average is in the module and the training weights are here.
  bool in_module() const { return in_module_; }
  /// Moves the average towards the module's parameters by this share of the difference, in one fused call. The first
  /// time the average becomes a copy of them.
  void update(double share);
  /// Swaps the average and the training weights; nothing happens while there is no average.
  void exchange();
  void put_into_module() {
    if (!in_module_) exchange();
  }
  void take_out_of_module() {
    if (in_module_) exchange();
  }

  /// By parameter name: what is kept here, and what the module has.
  State beside() const;
  State of_module() const;
  /// What `beside` gave; it is taken over when a module is bound. `in_module`: whether it is the training weights.
  void load(const State& beside, bool in_module);

 private:
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;  ///< of the module
  std::vector<at::Tensor> beside_;      ///< in the same order once bound
  bool in_module_ = false;
};

}  // namespace levin
