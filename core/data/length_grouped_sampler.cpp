#include <levin/core/data/length_grouped_sampler.h>

#include <levin/core/base/error.h>
#include <levin/core/data/generator.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace levin::data {

namespace {

/// Tells what groups are shuffled by from what examples are.
constexpr uint64_t kGroupStreams = 0x6772'6f75'7073;

}  // namespace

LengthGroupedSampler::LengthGroupedSampler(std::vector<int64_t> lengths, const Options& options)
    : lengths_(std::move(lengths)), options_(options) {
  if (options_.group_size < 1 || options_.window < 1)
    throw Error("data", fmt::format("a LengthGroupedSampler has groups of {} and windows of {}; valid: at least 1",
                                    options_.group_size, options_.window));
}

std::vector<int64_t> LengthGroupedSampler::order(int64_t dataset_size, uint64_t seed, int64_t epoch) const {
  if (dataset_size != std::ssize(lengths_))
    throw Error("data", fmt::format("the sampler has {}, the data set {}; valid: one for each",
                                    counted(std::ssize(lengths_), "length"), counted(dataset_size, "example")));
  if (dataset_size == 0) return {};
  const auto length_of = [this](int64_t example) { return lengths_[static_cast<size_t>(example)]; };
  std::vector<int64_t> drawn = RandomSampler().order(dataset_size, seed, epoch);
  const int64_t in_window = std::min(options_.window, dataset_size / options_.group_size + 1) * options_.group_size;
  for (int64_t begin = 0; begin < dataset_size; begin += in_window)
    std::stable_sort(drawn.begin() + begin, drawn.begin() + std::min(begin + in_window, dataset_size),
                     [&](int64_t a, int64_t b) { return length_of(a) > length_of(b); });

  const int64_t num_groups = dataset_size / options_.group_size;
  std::vector<int64_t> groups = RandomSampler().order(num_groups, seed ^ kGroupStreams, epoch);
  if (num_groups > 0) {
    // In its window it is the first of its group.
    const auto longest = std::max_element(groups.begin(), groups.end(), [&](int64_t a, int64_t b) {
      return length_of(drawn[static_cast<size_t>(a * options_.group_size)]) <
             length_of(drawn[static_cast<size_t>(b * options_.group_size)]);
    });
    std::iter_swap(groups.begin(), longest);
  }
  std::vector<int64_t> order;
  order.reserve(drawn.size());
  for (const int64_t group : groups) {
    const auto begin = drawn.begin() + group * options_.group_size;
    order.insert(order.end(), begin, begin + options_.group_size);
  }
  // What fills no group stays at the end, or the groups behind it would be cut in two by batches of their size.
  order.insert(order.end(), drawn.begin() + num_groups * options_.group_size, drawn.end());
  return order;
}

}  // namespace levin::data
