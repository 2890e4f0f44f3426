#include <levin/callbacks/device_stats_monitor.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/log.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

namespace levin {
namespace {

/// Whether this object is the only one of all ranks': one that cannot be made again serves rank 0 of several threads.
bool is_alone(const Trainer& trainer, const Callback& callback) {
  return trainer.world_size() == 1 || (trainer.strategy().ranks().are_threads() && !callback.can_rebuild());
}

/// What this rank samples, so that nothing is sampled by two ranks.
SampledDevices sampled_devices(const Trainer& trainer, const DeviceStatsMonitorOptions& options, bool is_alone) {
  Strategy& strategy = trainer.strategy();
  const bool first_of_host = is_alone || strategy.environment().local_rank() == 0;
  SampledDevices sampled{.process = options.cpu && (first_of_host || !strategy.ranks().are_threads()),
                         .host = options.cpu && first_of_host,
                         .gpus = {},
                         .other_gpus = options.gpus == "all" && first_of_host,
                         .except = {}};
  // Ranks of a host have a device each; one rank may have several.
  const std::vector<at::Device>& of_host = trainer.devices();
  const bool has_all = is_alone || strategy.environment().local_world_size() == 1;
  const std::vector<at::Device> own = has_all ? of_host : std::vector<at::Device>{strategy.root_device()};
  if (options.gpus == "none" || own.front().is_cpu()) return sampled;
  const std::vector<PciAddress> addresses = accelerator_of(own.front()).pci_addresses();
  const auto address_of = [&](const at::Device& device) -> std::optional<PciAddress> {
    const int64_t ordinal = device.index();
    return ordinal < std::ssize(addresses) ? std::optional(addresses.at(static_cast<size_t>(ordinal))) : std::nullopt;
  };
  for (const at::Device& device : own) sampled.gpus.push_back({address_of(device), device});
  // With `zero` no other rank samples its own.
  for (const at::Device& device : options.ranks == "zero" ? own : of_host)
    if (const auto address = address_of(device)) sampled.except.push_back(*address);
  return sampled;
}

LogReduce reduction(SampleFold fold) {
  switch (fold) {
    case SampleFold::kMax:
      return LogReduce::kMax;
    case SampleFold::kMin:
      return LogReduce::kMin;
    default:
      return LogReduce::kMean;
  }
}

/// "gpu/power_watts" of "gpu3/power_watts".
std::string without_number(const std::string& name) {
  const size_t slash = name.find('/');
  return name.starts_with("gpu") ? "gpu" + name.substr(slash) : name;
}

}  // namespace

void DeviceStatsMonitorOptions::describe(Schema<DeviceStatsMonitorOptions>& schema) {
  using Options = DeviceStatsMonitorOptions;
  schema.field("interval", &Options::interval, "time between two samples (s)")
      .require("at least 0.05", [](double seconds) { return seconds >= 0.05 && std::isfinite(seconds); });
  schema.field("gpus", &Options::gpus, "used: those that this run uses; all: all of each host; none")
      .one_of({"used", "all", "none"});
  schema.field("cpu", &Options::cpu, "also the processes of the run and their hosts");
  schema
      .field("ranks", &Options::ranks,
             "each: the values of each rank, under rank0/, rank1/, ...; mean: one value over all ranks and GPUs; zero: "
             "rank 0 only")
      .one_of({"each", "mean", "zero"});
}

DeviceStatsMonitor::DeviceStatsMonitor(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "device_stats_monitor");
}

void DeviceStatsMonitor::on_train_start(Trainer& trainer, Module&) {
  const bool alone = is_alone(trainer, *this);
  over_ranks_ = !alone;
  if (trainer.is_global_zero() || options_.ranks != "zero")
    sampler_.emplace(std::chrono::duration<double>(options_.interval), sampled_devices(trainer, options_, alone));
  name_metrics(trainer);
}

void DeviceStatsMonitor::name_metrics(Trainer& trainer) {
  static const std::vector<SampledQuantity> kNone;
  const std::vector<SampledQuantity>& quantities = sampler_ ? sampler_->quantities() : kNone;
  metrics_.clear();
  row_.clear();
  if (!over_ranks_) {
    for (size_t i = 0; i < quantities.size(); ++i) {
      const auto& [name, fold] = quantities[i];
      add_metric(options_.ranks == "mean" ? without_number(name) : name, fold, i);
    }
    return;
  }
  std::string own;
  for (const auto& [name, fold] : quantities) own += fmt::format("{} {}\n", static_cast<int>(fold), name);
  const auto of_ranks = trainer.strategy().collective().gather_bytes(own);
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const bool is_own = std::cmp_equal(rank, trainer.global_rank());
    std::istringstream lines(of_ranks[rank]);
    int fold = 0;
    std::string name;
    for (size_t i = 0; lines >> fold >> name; ++i) {
      if (options_.ranks == "each") name = fmt::format("rank{}/{}", rank, name);
      if (options_.ranks == "mean") name = without_number(name);
      add_metric(name, static_cast<SampleFold>(fold), is_own ? std::optional(i) : std::nullopt);
    }
  }
}

void DeviceStatsMonitor::add_metric(const std::string& name, SampleFold fold, std::optional<size_t> own) {
  auto found =
      std::find_if(metrics_.begin(), metrics_.end(), [&](const Metric& metric) { return metric.name == name; });
  if (found == metrics_.end()) {
    const LogOptions options{.on_step = true, .on_epoch = false, .reduce = reduction(fold), .sync_dist = true};
    metrics_.push_back({.name = name, .options = options, .own = {}, .spare = {}});
    found = metrics_.end() - 1;
  }
  if (own) found->own.push_back(*own);
}

void DeviceStatsMonitor::on_train_batch_start(Trainer& trainer, Module&, const Batch&, int64_t) {
  steps_before_ = trainer.global_step();
}

void DeviceStatsMonitor::on_train_batch_end(Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
  const int64_t every = trainer.options().log_every_n_steps;
  if (trainer.global_step() / every > steps_before_ / every) log(trainer);
}

void DeviceStatsMonitor::on_train_end(Trainer& trainer, Module&) {
  if (sampler_) sampler_->stop(/*with_last_sample=*/true);
  if (over_ranks_)
    trainer.log_last_row([&] { log(trainer); });
  else
    log(trainer);
  sampler_.reset();
}

void DeviceStatsMonitor::on_exception(Trainer&, Module&, const std::exception_ptr&) { sampler_.reset(); }

std::pair<double, int64_t> DeviceStatsMonitor::folded(const Metric& metric) const {
  double folded = 0;
  int64_t count = 0;
  for (const size_t i : metric.own) {
    const double value = values_[i];
    if (std::isnan(value)) continue;
    ++count;
    if (metric.options.reduce == LogReduce::kMean)
      folded += value;
    else if (count == 1)
      folded = value;
    else
      folded = metric.options.reduce == LogReduce::kMax ? std::max(folded, value) : std::min(folded, value);
  }
  if (metric.options.reduce == LogReduce::kMean && count > 0) folded /= static_cast<double>(count);
  return {folded, count};
}

void DeviceStatsMonitor::log(Trainer& trainer) {
  if (sampler_) {
    sampler_->take(values_);
    for (const std::string& message : sampler_->take_messages()) log::warning("device_stats_monitor: " + message);
  }
  for (Metric& metric : metrics_) {
    const auto [value, count] = folded(metric);
    if (over_ranks_) {
      // Every rank logs every name, with no weight where it has no value. It is the rank's value, not its batch's:
      // ranks that have no batch, or no outputs, log it too.
      metric.options.batch_size = count;
      trainer.log_rank_value(metric.name, value, metric.options);
    } else if (count > 0) {
      if (metric.spare) row_.insert(std::move(metric.spare));
      row_[metric.name] = value;
    } else if (auto place = row_.extract(metric.name)) {
      metric.spare = std::move(place);  // so that its next value allocates nothing
    }
  }
  if (!over_ranks_) trainer.log_metrics(row_);
}

}  // namespace levin
