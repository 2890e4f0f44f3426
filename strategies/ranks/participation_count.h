#pragma once

#include <levin/core/interfaces/strategy.h>

namespace levin {

/// How many ranks took part in an accumulation window, where a reduction of its own finds it out: see
/// Strategy::participation.
class ParticipationCount {
 public:
  /// This rank takes part in a micro-batch.
  void add(const AccumulationWindow& window);
  /// After a micro-batch: where it ends a window that counts participants, all ranks tell each other.
  void reduce(const AccumulationWindow& window, Collective& ranks, const at::Device& device);
  /// Of the newest window.
  const Strategy::Participation& participation() const { return participation_; }

 private:
  double own_ = 0;  ///< of this rank, in the window so far
  Strategy::Participation participation_;
};

}  // namespace levin
