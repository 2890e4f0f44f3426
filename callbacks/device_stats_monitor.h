#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/devices/device_sampler.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/metrics/log_options.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// Options of DeviceStatsMonitor, explained in describe().
struct DeviceStatsMonitorOptions {
  double interval = 1.0;
  std::string gpus = "used";
  bool cpu = true;
  std::string ranks = "each";

  static void describe(Schema<DeviceStatsMonitorOptions>& schema);
};

/// Logs what GPUs, processes and hosts do while training goes on: docs/monitoring.md lists the values. They are sampled
/// on a thread; a logging boundary gets the mean over the samples since the last one (of memory in use the most), and
/// the end of training one more row. What nobody could read is not logged, and nothing that fails ends training.
class DeviceStatsMonitor final : public Callback {
 public:
  using Options = DeviceStatsMonitorOptions;

  explicit DeviceStatsMonitor(const Options& options = {});

  /// Number of samples that this rank has taken in the fit under way; nothing where it takes none.
  std::optional<int64_t> samples() const { return sampler_ ? std::optional(sampler_->samples()) : std::nullopt; }

  void on_train_start(Trainer& trainer, Module& module) override;
  void on_train_batch_start(Trainer& trainer, Module& module, const Batch& batch, int64_t batch_idx) override;
  void on_train_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                          int64_t batch_idx) override;
  void on_train_end(Trainer& trainer, Module& module) override;
  void on_exception(Trainer& trainer, Module& module, const std::exception_ptr& error) override;

 private:
  /// A value as it is logged.
  struct Metric {
    std::string name;
    LogOptions options;
    std::vector<size_t> own;                         ///< those of this rank's quantities that are part of it
    std::map<std::string, double>::node_type spare;  ///< its place in `row_` while it has no value
  };

  void name_metrics(Trainer& trainer);
  void add_metric(const std::string& name, SampleFold fold, std::optional<size_t> own);
  /// Takes what was sampled, and logs it.
  void log(Trainer& trainer);
  /// Returns the mean, largest or smallest of a metric's `values_`, and the number of values; 0: there is none.
  std::pair<double, int64_t> folded(const Metric& metric) const;

  const Options options_;
  std::optional<DeviceSampler> sampler_;  ///< while training, on ranks that sample
  std::vector<Metric> metrics_;           ///< the same names in the same order on all ranks
  bool over_ranks_ = false;               ///< values of several ranks meet
  int64_t steps_before_ = 0;              ///< those taken when the batch under way began
  std::vector<double> values_;            ///< of the sampler's quantities
  std::map<std::string, double> row_;     ///< of this rank alone
};

}  // namespace levin
