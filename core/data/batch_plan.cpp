#include <levin/core/data/batch_plan.h>

#include <algorithm>

namespace levin::data {

int64_t BatchPlan::num_batches() const {
  const int64_t global_size = batch_size * world_size;
  const int64_t full = num_indices / global_size;
  const int64_t left_over = num_indices % global_size;
  // Of a partial batch with fewer examples than ranks, only the first ranks get one.
  return full + (!drop_last && rank < left_over ? 1 : 0);
}

BatchPlan::Range BatchPlan::range(int64_t batch) const {
  const int64_t global_begin = batch * batch_size * world_size;
  const int64_t count = std::min(batch_size * world_size, num_indices - global_begin);
  const int64_t share = count / world_size;
  const int64_t larger_shares = count % world_size;
  const int64_t begin = global_begin + rank * share + std::min(rank, larger_shares);
  return {begin, begin + share + (rank < larger_shares ? 1 : 0)};
}

}  // namespace levin::data
