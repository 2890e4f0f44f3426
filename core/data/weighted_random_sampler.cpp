#include <levin/core/data/weighted_random_sampler.h>

#include <levin/core/base/error.h>
#include <levin/core/data/generator.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

namespace levin::data {

WeightedRandomSampler::WeightedRandomSampler(std::vector<double> weights, const Options& options)
    : weights_(std::move(weights)), options_(options) {
  sums_.reserve(weights_.size());
  double sum = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (!(weights_[i] >= 0) || std::isinf(weights_[i]))
      throw Error("data",
                  fmt::format("a weight must be a number that is not below 0; got {} for example {}", weights_[i], i));
    sums_.push_back(sum += weights_[i]);
  }
  if (!(sum > 0) || std::isinf(sum))
    throw Error("data", fmt::format("the weights of {} have the sum {}; valid: above 0; hint: a weight of 0 means that "
                                    "an example is never drawn",
                                    counted(std::ssize(weights_), "example"), sum));
  const int64_t wanted = options_.num_samples.value_or(std::ssize(weights_));
  if (wanted < 1) throw Error("data", fmt::format("num_samples is {}; valid: at least 1", wanted));
  const auto drawable = std::count_if(weights_.begin(), weights_.end(), [](double weight) { return weight > 0; });
  if (!options_.replacement && wanted > drawable)
    throw Error("data", fmt::format("{} cannot be drawn without replacement from {} whose weight is above 0; hint: "
                                    "num_samples, or replacement: true",
                                    counted(wanted, "sample"), counted(drawable, "example")));
}

std::vector<int64_t> WeightedRandomSampler::order(int64_t dataset_size, uint64_t seed, int64_t epoch) const {
  if (dataset_size != std::ssize(weights_))
    throw Error("data", fmt::format("the sampler has {}, the data set {}; valid: one for each",
                                    counted(std::ssize(weights_), "weight"), counted(dataset_size, "example")));
  const int64_t count = length(dataset_size);
  return options_.replacement ? draw_with_replacement(count, seed, epoch)
                              : draw_without_replacement(count, seed, epoch);
}

std::vector<int64_t> WeightedRandomSampler::draw_with_replacement(int64_t count, uint64_t seed, int64_t epoch) const {
  Generator generator(seed, epoch, kOrderStream);
  std::vector<int64_t> drawn;
  drawn.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    // Rounded, the product may be the sum itself, and no sum is above it.
    const double place = std::min(generator.uniform() * sums_.back(), std::nextafter(sums_.back(), 0.0));
    drawn.push_back(std::upper_bound(sums_.begin(), sums_.end(), place) - sums_.begin());
  }
  return drawn;
}

// The examples whose exponential clocks, of these rates, ring first (Efraimidis and Spirakis: "Weighted random sampling
// with a reservoir", 2006): in the order in which one draw after the other would have taken them.
std::vector<int64_t> WeightedRandomSampler::draw_without_replacement(int64_t count, uint64_t seed,
                                                                     int64_t epoch) const {
  Generator generator(seed, epoch, kOrderStream);
  std::vector<std::pair<double, int64_t>> times;
  times.reserve(weights_.size());
  for (size_t i = 0; i < weights_.size(); ++i) {
    const double time = -std::log1p(-generator.uniform());
    if (weights_[i] > 0) times.emplace_back(time / weights_[i], static_cast<int64_t>(i));
  }
  std::partial_sort(times.begin(), times.begin() + count, times.end());
  std::vector<int64_t> drawn;
  drawn.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) drawn.push_back(times[static_cast<size_t>(i)].second);
  return drawn;
}

std::vector<double> class_balanced_weights(std::span<const int64_t> labels) {
  if (labels.empty()) throw Error("data", "classes cannot be balanced where there are no examples");
  std::unordered_map<int64_t, int64_t> counts;
  for (const int64_t label : labels) ++counts[label];
  std::vector<double> weights;
  weights.reserve(labels.size());
  for (const int64_t label : labels) weights.push_back(1.0 / static_cast<double>(counts[label]));
  return weights;
}

std::vector<double> class_weights(std::span<const int64_t> labels, std::span<const double> weights) {
  std::vector<double> result;
  result.reserve(labels.size());
  for (const int64_t label : labels) {
    if (label < 0 || label >= std::ssize(weights))
      throw Error("data", fmt::format("class {} has no weight; got {} of classes from 0 on; valid: one for each class",
                                      label, counted(std::ssize(weights), "weight")));
    result.push_back(weights[static_cast<size_t>(label)]);
  }
  return result;
}

}  // namespace levin::data
