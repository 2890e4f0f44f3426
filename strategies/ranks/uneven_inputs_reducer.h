#pragma once

#include <levin/core/interfaces/strategy.h>

namespace levin {

/// Finds out what Strategy::uneven_inputs tells by a reduction of its own, where no other carries it along.
class UnevenInputsReducer {
 public:
  /// Counts this rank's batch of the window, also one that it skips.
  void add(const AccumulationWindow& window);
  /// Called after each batch, by all ranks: where it ends a window of uneven inputs, all tell each other.
  void reduce(const AccumulationWindow& window, Collective& ranks);
  const Strategy::UnevenInputs& newest() const { return newest_; }

 private:
  double own_weight_ = 0;  ///< of this rank, in the window so far
  Strategy::UnevenInputs newest_;
};

}  // namespace levin
