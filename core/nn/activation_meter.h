#pragma once

#include <levin/core/nn/named_units.h>
#include <levin/core/nn/saved_tensor_scope.h>
#include <levin/core/nn/unit.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

/// What forwards leave for backward, in bytes: the memory of tensors that operations save, each once, without that of
/// parameters and buffers.
struct SavedBytes {
  int64_t all = 0;
  /// What checkpointing of the units would leave: saved outside of them, and their inputs.
  int64_t kept = 0;
  /// In each call of a unit, in order, without its inputs: what checkpointing saves anew, for one call at a time.
  std::vector<int64_t> inside;
  /// Parameters in another type, which autocast makes and keeps until the forward ends; in none of the above.
  int64_t weight_copies = 0;
};

/// While it is the innermost SavedTensorScope of its thread, adds up what operations save for backward. Of several
/// forwards, the one (or those without a finished backward in between) that left most counts.
class ActivationMeter final : public SavedTensorScope, private UnitHook {
 public:
  /// `units` must not be inside one another. The module outlives the meter.
  ActivationMeter(const torch::nn::Module& module, const std::vector<NamedUnit>& units);
  ~ActivationMeter() override;

  SavedBytes most() const;

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_keeper() override;

 private:
  class Keeper;
  class Ledger;

  void before_forward(UnitCall& call) override;
  void after_forward(UnitCall& call) override;
  bool measures(const UnitCall& call) const;

  std::shared_ptr<Ledger> ledger_;  ///< a graph may outlive the meter
  std::vector<Unit*> units_;
};

}  // namespace levin
