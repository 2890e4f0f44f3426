#include <levin/loggers/wandb_system.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

namespace levin {
namespace {

constexpr double kMib = 1024.0 * 1024.0;

struct SystemName {
  std::string_view levin;
  std::string_view wandb;
  double factor = 1;
};

constexpr SystemName kOfHost[] = {
    {"cpu/resident_memory_mib", "proc.memory.rssMB"},
    {"cpu/threads", "proc.cpu.threads"},
    {"host/available_memory_mib", "proc.memory.availableMB"},
};
constexpr SystemName kOfGpu[] = {
    {"utilization_percent", "gpu"},
    {"memory_utilization_percent", "memory"},
    {"memory_used_mib", "memoryAllocatedBytes", kMib},
    {"temperature_celsius", "temp"},
    {"power_watts", "powerWatts"},
    {"power_limit_watts", "enforcedPowerLimitWatts"},
    {"sm_clock_mhz", "smClock"},
    {"memory_clock_mhz", "memoryClock"},
    {"pcie_receive_mib_per_second", "pcieRxBytes", kMib},
    {"pcie_send_mib_per_second", "pcieTxBytes", kMib},
    {"nvlink_receive_mib_per_second", "nvlinkRxBytes", kMib},
    {"nvlink_send_mib_per_second", "nvlinkTxBytes", kMib},
};
/// Shares of a limit that is a value of its own, in percent.
struct ShareName {
  std::string_view levin;
  std::string_view limit;
  std::string_view wandb;
};
constexpr ShareName kSharesOfGpu[] = {
    {"memory_used_mib", "memory_total_mib", "memoryAllocated"},
    {"power_watts", "power_limit_watts", "powerPercent"},
};

/// Removes "rank12/" or "gpu3/" from the front of `name` and returns the number's digits; empty: it begins otherwise.
std::string_view take_numbered(std::string_view& name, std::string_view word) {
  if (!name.starts_with(word)) return {};
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos || slash == word.size()) return {};
  const std::string_view digits = name.substr(word.size(), slash - word.size());
  if (!std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) return {};
  name.remove_prefix(slash + 1);
  return digits;
}

}  // namespace

std::vector<wandb::Item> wandb::system_items(std::span<const MetricValue> values, int64_t cores,
                                             std::string_view prefix) {
  std::vector<Item> items;
  for (const MetricValue& metric : values) {
    std::string_view rest = metric.name;
    if (!prefix.empty() && rest.starts_with(prefix)) rest.remove_prefix(std::min(rest.size(), prefix.size() + 1));
    const std::string_view rank = take_numbered(rest, "rank");
    const std::string label = rank.empty() ? "" : fmt::format("/l:rank{}", rank);
    const auto add = [&](const std::string& name, double value) {
      if (std::isfinite(value)) items.push_back({name + label, fmt::format("{}", value)});
    };
    if (rest == "cpu/utilization_percent") add("cpu", metric.value / static_cast<double>(cores));
    for (const SystemName& name : kOfHost)
      if (rest == name.levin) add(std::string(name.wandb), metric.value * name.factor);
    const std::string_view gpu = take_numbered(rest, "gpu");
    if (gpu.empty()) continue;
    for (const SystemName& name : kOfGpu)
      if (rest == name.levin) add(fmt::format("gpu.{}.{}", gpu, name.wandb), metric.value * name.factor);
    for (const ShareName& name : kSharesOfGpu) {
      if (rest != name.levin) continue;
      const std::string limit_name = metric.name.substr(0, metric.name.size() - rest.size()) + std::string(name.limit);
      const auto limit = std::find_if(values.begin(), values.end(),
                                      [&](const MetricValue& value) { return value.name == limit_name; });
      if (limit != values.end()) add(fmt::format("gpu.{}.{}", gpu, name.wandb), 100 * metric.value / limit->value);
    }
  }
  return items;
}

}  // namespace levin
