#include <levin/core/data/sampler.h>

#include <levin/core/data/generator.h>

#include <numeric>
#include <utility>

namespace levin::data {

namespace {

std::vector<int64_t> counting(int64_t size) {
  std::vector<int64_t> indices(static_cast<size_t>(size));
  std::iota(indices.begin(), indices.end(), int64_t{0});
  return indices;
}

}  // namespace

int64_t Sampler::length(int64_t dataset_size) const { return static_cast<int64_t>(order(dataset_size, 0, 0).size()); }

std::vector<int64_t> SequentialSampler::order(int64_t dataset_size, uint64_t /*seed*/, int64_t /*epoch*/) const {
  return counting(dataset_size);
}

std::vector<int64_t> RandomSampler::order(int64_t dataset_size, uint64_t seed, int64_t epoch) const {
  auto indices = counting(dataset_size);
  Generator generator(seed, epoch, kOrderStream);
  for (int64_t i = dataset_size - 1; i > 0; --i)
    std::swap(indices[static_cast<size_t>(i)], indices[static_cast<size_t>(generator.below(i + 1))]);
  return indices;
}

}  // namespace levin::data
