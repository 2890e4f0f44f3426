#include <levin/core/data/blend_sampler.h>

#include <levin/core/base/error.h>
#include <levin/core/base/mutex.h>
#include <levin/core/base/seed.h>
#include <levin/core/data/batch_sampler.h>
#include <levin/core/data/generator.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace levin::data {

namespace {

/// Places that are drawn together.
constexpr int64_t kBlendBlock = int64_t{1} << 14;
/// Tells the draws of sources from the orders of examples.
constexpr uint64_t kBlendStreams = 0x6c65'7669'6e5f'626c;

/// Numbers in the ratio of weights that sum up to `total`: rounded down, and the largest remainders rounded up.
std::vector<int64_t> shares(const std::vector<double>& weights, int64_t total) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> counts;
  std::vector<std::pair<double, size_t>> remainders;
  int64_t left = total;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double exact = weights[i] / sum * static_cast<double>(total);
    counts.push_back(std::min(static_cast<int64_t>(std::floor(exact)), left));
    left -= counts.back();
    if (weights[i] > 0) remainders.emplace_back(exact - std::floor(exact), i);
  }
  std::stable_sort(remainders.begin(), remainders.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t i = 0; left > 0; i = (i + 1) % remainders.size(), --left) ++counts[remainders[i].second];
  return counts;
}

/// The order of one epoch. Sources are drawn block by block; how many of each were drawn before a block is kept.
class BlendOrder : public IndexOrder {
 public:
  BlendOrder(const std::vector<BlendSource>& sources, BlendEnd end, std::vector<int64_t> counts,
             std::vector<int64_t> lengths, uint64_t seed, int64_t epoch)
      : sources_(sources),
        end_(end),
        counts_(std::move(counts)),
        lengths_(std::move(lengths)),
        seed_(seed),
        epoch_(epoch) {
    size_ = std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
    int64_t begin = 0;
    for (const BlendSource& source : sources_) {
      begins_.push_back(begin);
      begin += source.size;
    }
    drawn_before_.emplace_back(sources_.size(), 0);
    orders_.resize(sources_.size());
  }

  int64_t size() const override { return size_; }

  std::vector<int64_t> indices(int64_t begin, int64_t end) const override {
    const MutexLock lock(mutex_);
    std::vector<int64_t> indices;
    indices.reserve(static_cast<size_t>(end - begin));
    for (int64_t place = begin; place < end; ++place) {
      find_block(place / kBlendBlock);
      const auto [source, nth] = block_places_[static_cast<size_t>(place % kBlendBlock)];
      indices.push_back(index_of(source, nth));
    }
    return indices;
  }

 private:
  struct Drawn {
    size_t source;
    int64_t nth;  ///< of the source's examples in this epoch
  };

  void find_block(int64_t block) const LEVIN_REQUIRES(mutex_) {
    if (block == block_) return;
    // Those before it that were never drawn say how many of each source there are before this one.
    for (auto known = static_cast<int64_t>(drawn_before_.size()) - 1; known < block; ++known) draw(known);
    draw(block);
  }

  /// Draws the sources of a block, and keeps what was drawn up to its end.
  void draw(int64_t block) const LEVIN_REQUIRES(mutex_) {
    std::vector<int64_t> drawn = drawn_before_[static_cast<size_t>(block)];
    Generator random(seed_ ^ kBlendStreams, epoch_, block);
    block_ = block;
    block_places_.clear();
    const int64_t count = std::min(kBlendBlock, size_ - block * kBlendBlock);
    for (int64_t i = 0; i < count; ++i) {
      const size_t source = draw_source(random, drawn);
      block_places_.push_back({source, drawn[source]++});
    }
    if (static_cast<int64_t>(drawn_before_.size()) == block + 1) drawn_before_.push_back(std::move(drawn));
  }

  /// Where sources repeat, each of the examples that are left is as likely; where they leave, weights hold among those
  /// that have examples left.
  size_t draw_source(Generator& random, const std::vector<int64_t>& drawn) const {
    double sum = 0;
    const auto weight = [&](size_t source) {
      const int64_t left = counts_[source] - drawn[source];
      if (left == 0) return 0.0;
      return end_ == BlendEnd::kRepeat ? static_cast<double>(left) : sources_[source].weight;
    };
    for (size_t source = 0; source < sources_.size(); ++source) sum += weight(source);
    double place = random.uniform() * sum;
    size_t last = 0;
    for (size_t source = 0; source < sources_.size(); ++source) {
      const double own = weight(source);
      if (own == 0) continue;
      last = source;
      if (place < own) return source;
      place -= own;
    }
    return last;
  }

  int64_t index_of(size_t source, int64_t nth) const LEVIN_REQUIRES(mutex_) {
    const int64_t place = end_ == BlendEnd::kRepeat ? epoch_ * counts_[source] + nth : epoch_ * lengths_[source] + nth;
    const int64_t own_epoch = place / lengths_[source];
    auto& [order_epoch, order] = orders_[source];
    if (order == nullptr || order_epoch != own_epoch) {
      const std::string& name = sources_[source].name;
      const uint64_t seed = mix_seed(seed_, XXH3_64bits(name.data(), name.size()));
      order = index_order_of(*sources_[source].sampler, sources_[source].size, seed, own_epoch);
      order_epoch = own_epoch;
    }
    const int64_t own = place % lengths_[source];
    return begins_[source] + order->indices(own, own + 1).front();
  }

  std::vector<BlendSource> sources_;
  BlendEnd end_;
  std::vector<int64_t> counts_;
  std::vector<int64_t> lengths_;
  std::vector<int64_t> begins_;  ///< of each source in the ConcatDataset
  uint64_t seed_;
  int64_t epoch_;
  int64_t size_ = 0;
  mutable Mutex mutex_;
  mutable std::vector<std::vector<int64_t>> drawn_before_ LEVIN_GUARDED_BY(mutex_);  ///< each block
  mutable int64_t block_ LEVIN_GUARDED_BY(mutex_) = -1;
  mutable std::vector<Drawn> block_places_ LEVIN_GUARDED_BY(mutex_);
  mutable std::vector<std::pair<int64_t, std::shared_ptr<const IndexOrder>>> orders_ LEVIN_GUARDED_BY(mutex_);
};

}  // namespace

std::vector<double> tempered_weights(const std::vector<std::string>& names, std::vector<double> weights,
                                     double temperature) {
  if (!(temperature > 0) || !std::isfinite(temperature))
    throw Error("data", fmt::format("the temperature of a blend is {}; valid: above 0", temperature));
  for (size_t i = 0; i < weights.size(); ++i)
    if (!(weights[i] >= 0) || !std::isfinite(weights[i]))
      throw Error("data", fmt::format("the weight of '{}' in a blend is {}; valid: at least 0", names[i], weights[i]));
  const double most = weights.empty() ? 0 : *std::max_element(weights.begin(), weights.end());
  if (most == 0)
    throw Error("data", fmt::format("all weights of the blend are zero: {}; valid: at least one above 0", join(names)));
  for (double& weight : weights)
    if (weight > 0) weight = std::pow(weight / most, 1 / temperature);
  return weights;
}

BlendSampler::BlendSampler(std::vector<BlendSource> sources, BlendEnd end, int64_t examples)
    : sources_(std::move(sources)), end_(end) {
  std::vector<std::string> names;
  std::vector<double> weights;
  int64_t total = 0;
  for (const BlendSource& source : sources_) {
    names.push_back(source.name);
    weights.push_back(source.weight);
    if (dynamic_cast<const BatchSampler*>(source.sampler.get()) != nullptr)
      throw Error("data", fmt::format("'{}' of the blend has a sampler that says batches; valid: one that says the "
                                      "order alone",
                                      source.name));
    lengths_.push_back(source.sampler->length(source.size));
    if (source.weight > 0) total += lengths_.back();
  }
  tempered_weights(names, weights, 1);
  for (size_t i = 0; i < sources_.size(); ++i)
    if (weights[i] > 0 && lengths_[i] == 0)
      throw Error("data", fmt::format("'{}' of the blend has no examples", names[i]));
  if (end_ == BlendEnd::kRepeat) {
    counts_ = shares(weights, examples > 0 ? examples : total);
    return;
  }
  if (examples > 0)
    throw Error("data",
                "an epoch of a blend whose sources leave has each of their examples; hint: leave `examples` out, "
                "or at_end: repeat");
  for (size_t i = 0; i < sources_.size(); ++i) counts_.push_back(weights[i] > 0 ? lengths_[i] : 0);
}

int64_t BlendSampler::length(int64_t /*dataset_size*/) const {
  return std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
}

std::shared_ptr<const IndexOrder> BlendSampler::index_order(int64_t dataset_size, uint64_t seed, int64_t epoch) const {
  int64_t size = 0;
  for (const BlendSource& source : sources_) size += source.size;
  if (size != dataset_size)
    throw Error("data", fmt::format("the sources of the blend have {} examples, the data set {}", size, dataset_size));
  return std::make_shared<const BlendOrder>(sources_, end_, counts_, lengths_, seed, epoch);
}

std::vector<double> BlendSampler::passes(int64_t epochs) const {
  std::vector<double> passes;
  for (size_t i = 0; i < sources_.size(); ++i)
    passes.push_back(lengths_[i] == 0 ? 0
                                      : static_cast<double>(counts_[i]) * static_cast<double>(epochs) /
                                            static_cast<double>(lengths_[i]));
  return passes;
}

std::string BlendSampler::description() const {
  std::string text = end_ == BlendEnd::kRepeat ? "blend of" : "blend, whose sources leave, of";
  for (size_t i = 0; i < sources_.size(); ++i)
    text += fmt::format("{} {} {} ({} of {})", i == 0 ? "" : ",", sources_[i].name, sources_[i].weight, counts_[i],
                        lengths_[i]);
  return text;
}

}  // namespace levin::data
