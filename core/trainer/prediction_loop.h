#pragma once

#include <levin/core/trainer/hooks.h>

#include <vector>

namespace levin {

/// Runs the prediction loaders once.
class PredictionLoop {
 public:
  PredictionLoop(RankCore& core, Hooks& hooks) : core_(core), hooks_(hooks) {}

  /// Predictions of every batch, one list for each loader, on the CPU. With several ranks those of all, on each: the
  /// ranks' parts of a batch are one, unless they differ in more than the number of rows.
  std::vector<std::vector<Batch>> run(const DataLoaders& loaders, const std::vector<int64_t>& batches);

 private:
  RankCore& core_;
  Hooks& hooks_;
};

}  // namespace levin
