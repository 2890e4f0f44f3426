#pragma once

#include <cstdint>

namespace levin {

class Module;
class State;

/// What a callback also derives from that puts an average in the place of the module's weights.
class AveragesWeights {
 public:
  virtual ~AveragesWeights() = default;
  /// Goes on with an average that PyTorch Lightning has kept: tensors by name, and how often it was updated. Returns
  /// whether it does; called before on_fit_start.
  virtual bool take_average(Module& /*module*/, const State& /*tensors*/, int64_t /*updates*/) { return false; }
};

}  // namespace levin
