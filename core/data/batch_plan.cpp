#include <levin/core/data/batch_plan.h>

#include <algorithm>

namespace levin::data {

int64_t BatchPlan::num_batches() const {
  const int64_t global_size = batch_size * world_size;
  const int64_t available = std::max<int64_t>(num_indices - first, 0);
  const int64_t full = available / global_size;
  const int64_t left_over = available % global_size;
  // Of a partial batch with fewer examples than ranks, only the first ranks get one.
  return full + (!drop_last && rank < left_over ? 1 : 0);
}

BatchPlan::Range BatchPlan::range(int64_t batch) const {
  const int64_t global_begin = global_range(batch).begin;
  const int64_t count = global_count(batch);
  const int64_t share = count / world_size;
  const int64_t larger_shares = count % world_size;
  const int64_t begin = global_begin + rank * share + std::min(rank, larger_shares);
  return {begin, begin + share + (rank < larger_shares ? 1 : 0)};
}

BatchPlan::Range BatchPlan::global_range(int64_t batch) const {
  const int64_t begin = first + batch * batch_size * world_size;
  return {begin, begin + global_count(batch)};
}

int64_t BatchPlan::global_count(int64_t batch) const {
  const int64_t left = num_indices - first - batch * batch_size * world_size;
  const int64_t count = std::clamp<int64_t>(left, 0, batch_size * world_size);
  return drop_last && count < batch_size * world_size ? 0 : count;
}

}  // namespace levin::data
