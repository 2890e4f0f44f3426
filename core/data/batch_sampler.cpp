#include <levin/core/data/batch_sampler.h>

namespace levin::data {

int64_t BatchSampler::num_batches(int64_t dataset_size) const { return std::ssize(batches(dataset_size, 0, 0).ends); }

std::vector<int64_t> BatchSampler::order(int64_t dataset_size, uint64_t seed, int64_t epoch) const {
  return batches(dataset_size, seed, epoch).order;
}

}  // namespace levin::data
