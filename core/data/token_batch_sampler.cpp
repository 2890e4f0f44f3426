#include <levin/core/data/token_batch_sampler.h>

#include <levin/core/base/error.h>
#include <levin/core/data/generator.h>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace levin::data {

namespace {

constexpr int64_t kLeastBatchesOfABucket = 2;

void shuffle(std::vector<int64_t>& values, int64_t begin, int64_t end, Generator& generator) {
  for (int64_t i = end - 1; i > begin; --i)
    std::swap(values[static_cast<size_t>(i)], values[static_cast<size_t>(begin + generator.below(i - begin + 1))]);
}

}  // namespace

TokenBatchSampler::TokenBatchSampler(std::vector<int64_t> lengths, const Options& options) : shuffle_(options.shuffle) {
  if (options.max_tokens < 1 || options.num_buckets < 1)
    throw Error("data", fmt::format("a TokenBatchSampler has batches of {} tokens and {} buckets; valid: at least 1",
                                    options.max_tokens, options.num_buckets));
  int64_t tokens = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > options.max_tokens || lengths[i] < 0)
      throw Error("data", fmt::format("example {} has {}, the budget of a batch is max_tokens: {}; hint: a larger "
                                      "budget, or shorter examples",
                                      i, counted(lengths[i], "token"), options.max_tokens));
    tokens += lengths[i] = std::max<int64_t>(lengths[i], 1);  // an empty example takes a place of padding
  }
  sorted_.resize(lengths.size());
  std::iota(sorted_.begin(), sorted_.end(), int64_t{0});
  const auto length_at = [&](int64_t place) {
    return lengths[static_cast<size_t>(sorted_[static_cast<size_t>(place)])];
  };
  std::stable_sort(sorted_.begin(), sorted_.end(), [&](int64_t a, int64_t b) {
    return lengths[static_cast<size_t>(a)] < lengths[static_cast<size_t>(b)];
  });
  const int64_t num_buckets =
      std::clamp<int64_t>(tokens / (kLeastBatchesOfABucket * options.max_tokens), 1, options.num_buckets);
  const int64_t tokens_of_bucket = (tokens + num_buckets - 1) / num_buckets;
  int64_t tokens_before = 0;
  for (int64_t place = 0; place < std::ssize(sorted_); ++place) {
    if (buckets_.empty() || tokens_before >= tokens_of_bucket * std::ssize(buckets_))
      buckets_.push_back({.begin = place});
    buckets_.back().end = place + 1;
    tokens_before += length_at(place);
  }
  for (Bucket& bucket : buckets_) {
    const int64_t most = options.max_tokens / length_at(bucket.end - 1);
    bucket.num_batches = (bucket.end - bucket.begin + most - 1) / most;
  }
}

int64_t TokenBatchSampler::num_batches(int64_t /*dataset_size*/) const {
  return std::accumulate(buckets_.begin(), buckets_.end(), int64_t{0},
                         [](int64_t sum, const Bucket& bucket) { return sum + bucket.num_batches; });
}

BatchSampler::Batches TokenBatchSampler::batches(int64_t dataset_size, uint64_t seed, int64_t epoch) const {
  if (dataset_size != std::ssize(sorted_))
    throw Error("data", fmt::format("the sampler has {}, the data set {}; valid: one for each",
                                    counted(std::ssize(sorted_), "length"), counted(dataset_size, "example")));
  Generator generator(seed, epoch, kOrderStream);
  std::vector<int64_t> examples = sorted_;
  std::vector<std::pair<int64_t, int64_t>> parts;
  for (const Bucket& bucket : buckets_) {
    if (shuffle_) shuffle(examples, bucket.begin, bucket.end, generator);
    const int64_t count = bucket.end - bucket.begin;
    for (int64_t batch = 0; batch < bucket.num_batches; ++batch)
      parts.emplace_back(bucket.begin + count * batch / bucket.num_batches,
                         bucket.begin + count * (batch + 1) / bucket.num_batches);
  }
  std::vector<int64_t> visited(parts.size());
  std::iota(visited.begin(), visited.end(), int64_t{0});
  if (shuffle_) shuffle(visited, 0, std::ssize(visited), generator);
  Batches result;
  result.order.reserve(examples.size());
  for (const int64_t batch : visited) {
    const auto [begin, end] = parts[static_cast<size_t>(batch)];
    result.order.insert(result.order.end(), examples.begin() + begin, examples.begin() + end);
    result.ends.push_back(std::ssize(result.order));
  }
  return result;
}

}  // namespace levin::data
