#include <levin/core/optim/accumulation_schedule.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

namespace levin::optim {
namespace {

int64_t divided_up(int64_t count, int64_t by) { return count / by + (count % by > 0 ? 1 : 0); }

/// a + b * c, or the largest number there is where that is more; none is below 0.
int64_t saturated(int64_t a, int64_t b, int64_t c) {
  int64_t product = 0;
  int64_t sum = 0;
  const bool too_large = __builtin_mul_overflow(b, c, &product) || __builtin_add_overflow(a, product, &sum);
  return too_large ? std::numeric_limits<int64_t>::max() : sum;
}

}  // namespace

AccumulationSchedule::AccumulationSchedule(std::map<int64_t, int64_t> batches_from_epoch)
    : batches_(std::move(batches_from_epoch)) {
  batches_.try_emplace(0, 1);
}

int64_t AccumulationSchedule::at(int64_t epoch) const {
  const auto next = batches_.upper_bound(epoch);
  return next == batches_.begin() ? 1 : std::prev(next)->second;
}

bool AccumulationSchedule::is_off() const {
  return std::all_of(batches_.begin(), batches_.end(), [](const auto& entry) { return entry.second == 1; });
}

int64_t AccumulationSchedule::fewest_batches() const {
  return std::min_element(batches_.begin(), batches_.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->second;
}

int64_t AccumulationSchedule::steps(int64_t epochs, int64_t batches_an_epoch) const {
  int64_t steps = 0;
  for (auto from = batches_.begin(); from != batches_.end() && from->first < epochs; ++from) {
    const auto next = std::next(from);
    const int64_t end = next == batches_.end() ? epochs : std::min(epochs, next->first);
    steps = saturated(steps, end - from->first, divided_up(batches_an_epoch, from->second));
  }
  return steps;
}

int64_t AccumulationSchedule::epochs(int64_t steps, int64_t batches_an_epoch) const {
  for (auto from = batches_.begin();; ++from) {
    const int64_t steps_an_epoch = divided_up(batches_an_epoch, from->second);
    const int64_t needed = from->first + divided_up(steps, steps_an_epoch);
    const auto next = std::next(from);
    if (next == batches_.end() || needed <= next->first) return needed;
    steps -= (next->first - from->first) * steps_an_epoch;
  }
}

}  // namespace levin::optim

namespace levin {

using optim::AccumulationSchedule;

AccumulationSchedule ConfigCodec<AccumulationSchedule>::parse(const Config& node, const std::string& path) {
  if (!node.is_mapping()) {
    if (!node.is_scalar()) throw_wrong_type(node, path, "an integer, or a mapping such as {0: 8, 4: 2}");
    return ConfigCodec<int64_t>::parse(node, path);
  }
  std::map<int64_t, int64_t> batches;
  for (const auto& entry : node.entries()) {
    const Config key = Config::scalar(entry.key, false, entry.value.origin());
    const auto epoch = ConfigCodec<int64_t>::parse(key, path + " (an epoch)");
    if (!batches.emplace(epoch, ConfigCodec<int64_t>::parse(entry.value, path + "." + entry.key)).second)
      throw ConfigError(fmt::format("{}{} has epoch {} twice", entry.value.origin().prefix(), path, epoch));
  }
  return AccumulationSchedule(std::move(batches));
}

Config ConfigCodec<AccumulationSchedule>::dump(const AccumulationSchedule& value) {
  const auto& batches = value.batches_from_epoch();
  if (batches.size() == 1) return ConfigCodec<int64_t>::dump(batches.begin()->second);
  Config node = Config::mapping();
  for (const auto& [epoch, count] : batches) node.set(std::to_string(epoch), ConfigCodec<int64_t>::dump(count));
  return node;
}

}  // namespace levin
