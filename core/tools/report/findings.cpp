#include <levin/core/tools/report/findings.h>

#include <levin/core/base/error.h>
#include <levin/core/tools/report/metric_placement.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

namespace levin::report {
namespace {

// The limits of the rules; docs/monitoring.md names them.
constexpr double kHighDataWait = 20;  // % of the time
constexpr double kLowDataWait = 5;
constexpr double kLowUtilization = 50;  // %
constexpr double kLowMemory = 40;       // % of the GPU's memory
constexpr double kHighMemory = 95;
constexpr double kHighTemperature = 85;  // °C
constexpr double kWorseThanBest = 1.1;   // factor
constexpr size_t kFewestToJudge = 5;     // points

/// The metric's name without its rank and its GPU; "rank1/gpu0/power_watts" -> "power_watts".
std::string_view hardware_name(std::string_view name) {
  const size_t gpu = name.find("gpu");
  if (gpu != 0 && (gpu == std::string_view::npos || name[gpu - 1] != '/')) return {};
  const size_t slash = name.find('/', gpu);
  return slash == std::string_view::npos ? std::string_view{} : name.substr(slash + 1);
}

/// "rank1/gpu0" of "rank1/gpu0/power_watts".
std::string device_of(std::string_view name) { return std::string(name.substr(0, name.rfind('/'))); }

std::string_view without_rank(std::string_view name) {
  return name.starts_with("rank") && name.find('/') != std::string_view::npos ? name.substr(name.find('/') + 1) : name;
}

class Examination {
 public:
  explicit Examination(const RunFolder& run) : run_(run) {}

  Findings result() {
    non_finite_values();
    data_wait();
    gpu_utilization();
    computation();
    gpu_memory();
    gpu_temperature();
    overfitting();
    return std::move(findings_);
  }

 private:
  void add(Finding::Kind kind, std::string text, std::string remedy) {
    findings_.found.push_back({kind, std::move(text), std::move(remedy)});
  }
  /// Whether the run computes on the GPU of a metric: only then does it have values of the allocator (gpus: all).
  bool is_used(const std::string& name) const {
    return run_.metrics.find(device_of(name) + "/allocated_mib") != nullptr;
  }
  void lacks(std::string what) { findings_.without_data.push_back(std::move(what)); }

  void non_finite_values() {
    for (const auto& [name, series] : run_.metrics.all()) {
      const auto summary = summarize(series);
      if (summary.first_non_finite == nullptr) continue;
      const Point& first = *summary.first_non_finite;
      const size_t count = summary.not_a_number + summary.infinite;
      add(Finding::Kind::kProblem,
          fmt::format("{} was {} at step {}{}.", name, std::isnan(first.value) ? "NaN" : "infinite", first.step,
                      count == 1 ? " alone" : fmt::format(", and at {} of {} points in all", count, summary.points)),
          "The callback nan_monitor names the unit and the parameter that turned non-finite first "
          "(docs/monitoring.md, \"Throughput and faults\"); a lower learning rate, gradient_clip_val and "
          "bf16-mixed in place of 16-mixed are the usual remedies (docs/when-it-does-not-fit.md).");
    }
  }

  void data_wait() {
    bool seen = false;
    for (const auto& [name, series] : run_.metrics.all()) {
      if (without_rank(name) != "throughput/data_wait_percent") continue;
      const double mean = settled_mean(series);
      if (std::isnan(mean)) continue;
      seen = true;
      least_wait_ = std::min(least_wait_, mean);
      if (mean < kHighDataWait) continue;
      loader_bound_ = true;
      add(Finding::Kind::kProblem,
          fmt::format("Training waits for data {:.0f} % of the time ({}, mean of the second half): it is bound by the "
                      "data loader.",
                      mean, name),
          "Raise data.num_workers (not where the module itself makes the data), make items cheaper (decode and resize "
          "once, before training), or keep them in memory "
          "(docs/monitoring.md, \"Throughput and faults\").");
    }
    if (!seen) lacks("time spent waiting for data (callback throughput_monitor)");
  }

  void gpu_utilization() {
    bool seen = false;
    std::vector<std::string> idle;
    double least = 100, greatest = 0;
    for (const auto& [name, series] : run_.metrics.all()) {
      if (hardware_name(name) != "utilization_percent" || !is_used(name)) continue;
      const double mean = settled_mean(series);
      if (std::isnan(mean)) continue;
      seen = true;
      if (mean >= kLowUtilization) continue;
      idle.push_back(device_of(name));
      least = std::min(least, mean);
      greatest = std::max(greatest, mean);
    }
    if (!seen) lacks("GPU utilization (callback device_stats_monitor, on a machine with NVML)");
    gpu_is_idle_ = !idle.empty();
    if (idle.empty()) return;
    const std::string range = std::round(least) == std::round(greatest) ? "" : fmt::format("{:.0f} to ", least);
    add(Finding::Kind::kProblem,
        fmt::format("{}: the GPU is in use {}{:.0f} % of the time only (mean of the second half).", join(idle), range,
                    greatest),
        loader_bound_ ? "It waits for data: see the finding about the data loader."
                      : "A larger batch, graph: true for many small kernels, or fewer metrics read in the step; "
                        "profiler: simple shows where the time goes (docs/monitoring.md, \"Profilers\").");
  }

  void computation() {
    if (least_wait_ > kLowDataWait || loader_bound_ || gpu_is_idle_) return;
    add(Finding::Kind::kHint,
        fmt::format("Training waits for data {:.0f} % of the time: what it computes sets the pace.", least_wait_),
        "profiler: simple names the units, profiler: pytorch the operators that take the time; then precision, "
        "memory_format: channels_last for images, or another layer (docs/monitoring.md, \"From slow to fast\").");
  }

  void gpu_memory() {
    bool seen = false;
    std::vector<std::string> full, roomy;
    for (const auto& [name, series] : run_.metrics.all()) {
      if (hardware_name(name) != "memory_used_mib" || !is_used(name)) continue;
      const std::string total_name = name.substr(0, name.size() - std::string_view("used_mib").size()) + "total_mib";
      const Series* total_series = run_.metrics.find(total_name);
      const auto used = summarize(series);
      const auto total = total_series == nullptr ? SeriesSummary{} : summarize(*total_series);
      if (used.max == nullptr || total.max == nullptr || total.max->value <= 0) continue;
      seen = true;
      const double percent = 100 * used.max->value / total.max->value;
      const std::string use = fmt::format("{} ({:.0f} of {:.0f} MiB, {:.0f} %)", device_of(name), used.max->value,
                                          total.max->value, percent);
      if (percent >= kHighMemory) full.push_back(use);
      if (percent < kLowMemory) roomy.push_back(use);
    }
    if (!seen) lacks("GPU memory (callback device_stats_monitor, on a machine with NVML)");
    if (!full.empty())
      add(Finding::Kind::kProblem,
          "Memory was nearly full: " + join(full) + ". A larger batch or sequence may not fit.",
          "A smaller batch with accumulate_grad_batches, activation checkpointing or a sharded strategy "
          "(docs/when-it-does-not-fit.md).");
    if (!roomy.empty())
      add(Finding::Kind::kHint, "Much memory was never used: " + join(roomy) + ". A larger batch would fit.",
          "batch_size_finder finds the largest that fits (docs/tuning.md).");
  }

  void gpu_temperature() {
    std::vector<std::string> hot;
    for (const auto& [name, series] : run_.metrics.all()) {
      if (hardware_name(name) != "temperature_celsius") continue;
      const auto summary = summarize(series);
      if (summary.max == nullptr || summary.max->value < kHighTemperature) continue;
      hot.push_back(fmt::format("{} ({:.0f} °C at step {})", device_of(name), summary.max->value, summary.max->step));
    }
    if (hot.empty()) return;
    add(Finding::Kind::kProblem, "GPUs became hot: " + join(hot) + ". They lower their clocks then.",
        "Compare with the curve of the clock; see to the cooling.");
  }

  void overfitting() {
    for (const auto& [name, series] : run_.metrics.all()) {
      const Placement place = place_metric(name);
      if (place.group != Group::kValidation || place.quantity != "loss" || series.size() < kFewestToJudge) continue;
      const auto summary = summarize(series);
      if (summary.last == nullptr || summary.min->value <= 0) continue;
      const auto best = static_cast<size_t>(summary.min - series.data());
      if (best >= series.size() * 2 / 3 || summary.last->value < kWorseThanBest * summary.min->value) continue;
      add(Finding::Kind::kHint,
          fmt::format("{} was best at step {} ({:.4g}) and is {:.0f} % higher at the end ({:.4g}): the model fits the "
                      "training data only.",
                      name, summary.min->step, summary.min->value, 100 * (summary.last->value / summary.min->value - 1),
                      summary.last->value),
          "early_stopping ends such a run, model_checkpoint with this monitor keeps its best model "
          "(docs/callbacks.md); "
          "weight decay, dropout and augmentation put it off.");
    }
  }

  const RunFolder& run_;
  Findings findings_;
  double least_wait_ = std::numeric_limits<double>::infinity();  ///< for data, in percent
  bool loader_bound_ = false;
  bool gpu_is_idle_ = false;
};

}  // namespace

Findings find_findings(const RunFolder& run) { return Examination(run).result(); }

}  // namespace levin::report
