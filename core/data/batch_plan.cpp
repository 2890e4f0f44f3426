#include <levin/core/data/batch_plan.h>

#include <algorithm>

namespace levin::data {

int64_t BatchPlan::num_batches() const {
  if (ends != nullptr) return std::ssize(*ends);
  const int64_t global_size = batch_size * world_size;
  const int64_t available = std::max<int64_t>(num_indices - first, 0);
  const int64_t full = available / global_size;
  const int64_t left_over = available % global_size;
  // Of a partial batch with fewer examples than ranks, only the first ranks get one.
  return full + (!drop_last && rank < left_over ? 1 : 0);
}

BatchPlan::Range BatchPlan::range(int64_t batch) const {
  const Range whole = global_range(batch);
  const int64_t own = own_count(batch);
  if (own == 0 && ends != nullptr) return {whole.end - 1, whole.end};
  const int64_t count = whole.end - whole.begin;
  const int64_t begin = whole.begin + rank * (count / world_size) + std::min(rank, count % world_size);
  return {begin, begin + own};
}

int64_t BatchPlan::own_count(int64_t batch) const {
  const int64_t count = global_count(batch);
  return count / world_size + (rank < count % world_size ? 1 : 0);
}

BatchPlan::Range BatchPlan::global_range(int64_t batch) const {
  if (ends != nullptr) {
    const auto place = static_cast<size_t>(batch);
    return {place == 0 ? 0 : (*ends)[place - 1], (*ends)[place]};
  }
  const int64_t begin = first + batch * batch_size * world_size;
  return {begin, begin + global_count(batch)};
}

int64_t BatchPlan::global_count(int64_t batch) const {
  if (ends != nullptr) {
    if (batch >= num_batches()) return 0;
    const Range whole = global_range(batch);
    return whole.end - whole.begin;
  }
  const int64_t left = num_indices - first - batch * batch_size * world_size;
  const int64_t count = std::clamp<int64_t>(left, 0, batch_size * world_size);
  return drop_last && count < batch_size * world_size ? 0 : count;
}

}  // namespace levin::data
