#pragma once

#include <levin/core/interfaces/strategy.h>

#include <cstdint>
#include <optional>

namespace levin {

class OptimizerHandle;

/// What a strategy also derives from whose ranks may take their steps independently of each other: inside an epoch a
/// rank takes the next batch that no rank has taken whenever it is ready for one, and meets the others at the end. Each
/// batch is a step, and every rank counts the steps of all.
class IndependentSteps {
 public:
  virtual ~IndependentSteps() = default;
  /// Whether ranks do so in the call under way.
  virtual bool are_steps_independent() = 0;
  /// All ranks are about to take the batches from `first` to before `end` of an epoch. Until they meet, whatever needs
  /// all ranks at once is an error.
  virtual void begin_batches(int64_t epoch, int64_t first, int64_t end) = 0;
  /// The next batch, this rank's from now on; nothing when all are taken. Called from any thread.
  virtual std::optional<int64_t> take_batch() = 0;
  /// Takes the place of the bare step of an optimizer, with the gradients of this batch.
  virtual void take_step(OptimizerHandle& optimizer, int64_t batch) = 0;
  /// Waits until all ranks are idle. `done`: the batch after the last one that this rank trained on; `stopped`: it was
  /// asked to stop before the batches were all taken. Returns the batch after the last one that any rank trained on,
  /// which is `end` where none was stopped. All ranks have the same weights then. Ranks that were killed since
  /// begin_batches may be missing: the strategy's rank, world_size and collective are then those of the others.
  virtual int64_t meet(int64_t done, bool stopped) = 0;
};

/// The strategy's independent steps where it has them now, else nullptr.
inline IndependentSteps* find_independent_steps(Strategy& strategy) {
  auto* steps = dynamic_cast<IndependentSteps*>(&strategy);
  return steps != nullptr && steps->are_steps_independent() ? steps : nullptr;
}

/// Interface of strategies whose ranks may have different weights between steps (local SGD).
class LocalWeights {
 public:
  virtual ~LocalWeights() = default;
  /// Whether that is so in the call under way.
  virtual bool has_local_weights() = 0;
};

/// Whether the strategy's ranks may have different weights between steps.
inline bool has_local_weights(Strategy& strategy) {
  auto* local = dynamic_cast<LocalWeights*>(&strategy);
  return local != nullptr && local->has_local_weights();
}

}  // namespace levin
