#pragma once

#include <levin/core/nn/named_units.h>
#include <levin/core/nn/tensor_plan.h>
#include <levin/core/nn/unit_hook.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace levin {

class Collective;
class SequenceScope;

/// Cuts the sequence that units work on over the ranks which have shares of their layers: the activations that such a
/// unit is given first, [N, T, ...], become this rank's part (see cut_sequence), and its row layers give parts. Parts
/// pass from unit to unit; a head gathers them.
///
/// The units are the outermost ones that have layers cut by column and by row, and none by vocabulary.
class SequenceUnits final : public UnitHook {
 public:
  /// `weights`: those of the module that are cut. The module outlives it. Throws ConfigError where there is no such
  /// unit.
  SequenceUnits(torch::nn::Module& module, const std::vector<CutWeight>& weights, std::shared_ptr<Collective> group);
  ~SequenceUnits() override;
  SequenceUnits(const SequenceUnits&) = delete;
  SequenceUnits& operator=(const SequenceUnits&) = delete;

  const std::vector<NamedUnit>& units() const { return units_; }
  /// Throws levin::Error where gradients are enabled and T is not a multiple of the number of ranks, or the activations
  /// have other dimensions; without gradients these stay as they are.
  void before_forward(UnitCall& call) override;
  void after_forward(UnitCall& call) override;

 private:
  std::shared_ptr<Collective> group_;
  std::vector<NamedUnit> units_;
  std::map<const Unit*, std::string> paths_;
};

}  // namespace levin
