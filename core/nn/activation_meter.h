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

/// Bytes of the memory of tensors that operations save for backward, each once, without that of parameters and buffers.
struct SavedBytes {
  int64_t all = 0;
  int64_t weight_copies = 0;  ///< of them, those of parameters in another type, which autocast makes

  SavedBytes& operator+=(const SavedBytes& other) {
    all += other.all;
    weight_copies += other.weight_copies;
    return *this;
  }
};

/// Bytes that forwards leave for backward.
struct SavedByForward {
  SavedBytes whole;
  /// Bytes that checkpointing of the units would leave: saved outside of them, and their inputs.
  SavedBytes kept;
  /// Bytes saved in each call of a unit, in order, without its inputs: checkpointing saves them anew, one call at a
  /// time.
  std::vector<SavedBytes> inside;
};

/// Adds up what operations save for backward while it is the innermost SavedTensorScope of its thread. Of several
/// forwards, the one (or those without a finished backward in between) that left most counts.
class ActivationMeter final : public SavedTensorScope, private UnitHook {
 public:
  /// `units` must not be inside one another. The module outlives the meter.
  ActivationMeter(const torch::nn::Module& module, const std::vector<NamedUnit>& units);
  ~ActivationMeter() override;

  SavedByForward most() const;
  /// Bytes saved at present.
  SavedBytes now() const;

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
