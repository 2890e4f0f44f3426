#pragma once

#include <levin/core/trainer/rank_core.h>

#include <utility>
#include <vector>

namespace levin {

/// While a rank without data takes part in a step of the others, nothing of the batch that stands in may be seen
/// later: logs are muted, and buffers (running statistics) are put back.
class StandIn {
 public:
  StandIn(RankCore& core, bool active);
  ~StandIn();
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;

 private:
  RankCore& core_;
  bool active_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  ///< with their copies
};

}  // namespace levin
