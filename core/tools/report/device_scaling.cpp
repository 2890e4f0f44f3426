#include <levin/core/tools/report/device_scaling.h>

#include <charconv>
#include <map>
#include <string_view>
#include <system_error>

namespace levin::report {
namespace {

const std::string* option_of(const RunFolder& run, std::string_view path) {
  for (const auto& [option, value] : run.configuration)
    if (option == path) return &value;
  return nullptr;
}

std::optional<int64_t> whole_number(const std::string* text) {
  if (text == nullptr) return std::nullopt;
  int64_t number = 0;
  const char* end = text->data() + text->size();
  const auto result = std::from_chars(text->data(), end, number);
  if (result.ec != std::errc() || result.ptr != end || number < 1) return std::nullopt;
  return number;
}

std::optional<double> mean_of(const RunFolder& run, std::string_view metric) {
  const Series* series = run.metrics.find(metric);
  if (series == nullptr) return std::nullopt;
  const auto summary = summarize(*series);
  if (summary.last == nullptr) return std::nullopt;
  return summary.mean;
}

}  // namespace

std::optional<int64_t> devices_of(const RunFolder& run) {
  if (const auto logged = mean_of(run, "throughput/devices")) return static_cast<int64_t>(*logged);
  const auto devices = whole_number(option_of(run, "trainer.devices"));
  const auto nodes = whole_number(option_of(run, "trainer.num_nodes"));
  if (!devices) return std::nullopt;
  return *devices * nodes.value_or(1);
}

std::string label_of(const RunFolder& run) {
  std::string label;
  for (const char* path : {"model.name", "data.name"})
    if (const std::string* name = option_of(run, path)) label += (label.empty() ? "" : " on ") + *name;
  return label;
}

std::vector<ScalingSeries> find_scaling(const std::vector<RunFolder>& runs) {
  struct Sums {
    std::vector<size_t> runs;
    double seconds = 0;
    double samples = 0;
  };
  std::map<std::string, std::map<int64_t, Sums>> found;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto seconds = mean_of(runs[i], "throughput/epoch_seconds");
    const auto samples = mean_of(runs[i], "throughput/epoch_samples");
    const auto devices = devices_of(runs[i]);
    if (!seconds || !samples || !devices || *seconds <= 0) continue;
    Sums& sums = found[label_of(runs[i])][*devices];
    sums.runs.push_back(i);
    sums.seconds += *seconds;
    sums.samples += *samples;
  }

  std::vector<ScalingSeries> all;
  for (const auto& [label, by_devices] : found) {
    ScalingSeries series{.label = label, .rows = {}};
    for (const auto& [devices, sums] : by_devices) {
      const double seconds = sums.seconds / static_cast<double>(sums.runs.size());
      const double fewest = series.rows.empty() ? seconds : series.rows.front().epoch_seconds;
      series.rows.push_back({.devices = devices,
                             .runs = sums.runs,
                             .epoch_seconds = seconds,
                             .samples_per_second = sums.samples / sums.seconds,
                             .speedup = fewest / seconds});
    }
    all.push_back(std::move(series));
  }
  return all;
}

}  // namespace levin::report
