#include <levin/core/data/permutation_sampler.h>

#include <levin/core/base/seed.h>
#include <levin/core/data/generator.h>

#include <algorithm>

namespace levin::data {

namespace {

constexpr int kFeistelRounds = 8;

}  // namespace

Permutation::Permutation(int64_t size, uint64_t seed, int64_t epoch) : size_(size) {
  if (size <= kMostListed) {
    list_ = RandomSampler().order(size, seed, epoch);
    return;
  }
  while (half_bits_ < 31 && (int64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
  Generator generator(seed, epoch, kOrderStream);
  for (int i = 0; i < kFeistelRounds; ++i) keys_.push_back(generator.next());
}

int64_t Permutation::at(int64_t place) const {
  if (!list_.empty()) return list_[static_cast<size_t>(place)];
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto number = static_cast<uint64_t>(place);
  do {
    uint64_t left = number >> half_bits_;
    uint64_t right = number & mask;
    for (const uint64_t key : keys_) {
      left ^= mix_seed(key, right, 0) & mask;
      std::swap(left, right);
    }
    number = left << half_bits_ | right;
  } while (number >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(number);
}

std::vector<int64_t> Permutation::indices(int64_t begin, int64_t end) const {
  std::vector<int64_t> indices;
  indices.reserve(static_cast<size_t>(end - begin));
  for (int64_t place = begin; place < end; ++place) indices.push_back(at(place));
  return indices;
}

std::shared_ptr<const IndexOrder> PermutationSampler::index_order(int64_t dataset_size, uint64_t seed,
                                                                  int64_t epoch) const {
  return std::make_shared<const Permutation>(dataset_size, seed, epoch);
}

}  // namespace levin::data
