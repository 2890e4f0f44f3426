#pragma once

#include <levin/core/base/state.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace levin {

class Module;
class Strategy;

/// A running average of a module's floating-point parameters, and buffers if wanted, in their own types, kept beside
/// the module; of this rank's parts of them where a strategy divides them. `exchange` swaps the two in place, so that
/// the module computes with the average and its training weights wait here. All ranks do the same.
class AveragedWeights {
 public:
  /// Forgets the average and the module.
  void reset();
  /// `use_buffers`: buffers are averaged too. `offload`: the tensors kept here are in the host's memory.
  struct Settings {
    bool use_buffers = false;
    bool offload = false;
  };
  /// Binds to a module as the strategy has set it up, and takes over what was loaded. Throws levin::Error when that is
  /// of other parameters or buffers.
  void bind(Module& module, Strategy& strategy, const Settings& settings);

  /// Whether there is no average yet.
  bool empty() const { return beside_.empty() && loaded_.is_null(); }
  /// Whether the average is in the module and the training weights are here.
  bool in_module() const { return in_module_; }
  /// Moves the average towards the module's values by this share of the difference, in one fused call where they are
  /// on one device. The first time the average becomes a copy of them.
  void update(double share);
  /// Swaps the average and the training weights; nothing happens while there is no average.
  void exchange();
  void put_into_module() {
    if (!in_module_) exchange();
  }
  void take_out_of_module() {
    if (in_module_) exchange();
  }

  /// Return the tensors kept here, and those in the module: for each name under `parameters` a map with the `value`.
  State beside() const { return placed(beside_); }
  State of_module() const { return placed(live_); }
  /// Keeps what `beside` gave until a module is bound. `in_module`: it is the training weights.
  void load(const State& beside, bool in_module);

 private:
  State placed(const std::vector<at::Tensor>& tensors) const;
  at::Device device_beside(const at::Tensor& live) const { return offload_ ? at::Device(at::kCPU) : live.device(); }

  Strategy* strategy_ = nullptr;
  bool offload_ = false;
  std::vector<std::string> names_;
  std::vector<at::Tensor> live_;    ///< the averaged parameters, or what optimizers step in their place
  std::vector<at::Tensor> beside_;  ///< in the same order
  State loaded_;                    ///< what was loaded, until a module is bound
  bool in_module_ = false;
};

}  // namespace levin
