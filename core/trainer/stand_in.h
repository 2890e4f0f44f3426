#pragma once

#include <levin/core/trainer/rank_core.h>

#include <utility>
#include <vector>

namespace levin {

/// A batch for a rank that has none: the first that rank 0 has. Throws levin::Error where there is none at all.
Batch stand_in_batch(RankCore& core, const DataLoader& loader);

/// While a rank without data takes part in a step of the others, nothing of the batch that stands in may be seen
/// later: logs are muted; buffers (running statistics) and the metrics that are logged are put back.
class StandIn {
 public:
  StandIn(RankCore& core, bool active);
  ~StandIn();
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;

 private:
  RankCore& core_;
  bool active_;
  bool was_muted_ = false;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  ///< with their copies
  std::vector<std::pair<metrics::Metric*, State>> metrics_;
};

}  // namespace levin
