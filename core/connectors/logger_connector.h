#pragma once

#include <levin/core/connectors/tracer.h>
#include <levin/core/connectors/trainer_state.h>
#include <levin/core/data/data_module.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/metrics/collector.h>
#include <levin/core/metrics/metric_map.h>
#include <levin/core/options/resolved_options.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin {

/// Owns what is logged: the collectors behind log(), the newest value of each name, the row under way, the run's folder
/// and the loggers.
class LoggerConnector {
 public:
  LoggerConnector(const ResolvedOptions& options, TrainerState& state, Tracer& tracer);

  // ---- What modules and callbacks log.

  /// Hands a value to the active collector, where this rank's value counts. Throws levin::Error where there is none.
  /// With `barebones` it says that nothing is logged.
  template <class Value>
  void log(std::string_view name, Value&& value, const LogOptions& options) {
    if (options_.given.barebones) return refuse_logging();
    metrics::Collector* const collector = require_active(name);
    if (state_.joining || !model_.owns_outputs()) return;
    if (options.rank_zero_only && model_.outputs_everywhere() && !strategy_.is_global_zero()) return;
    collector->log(name, value, options);
  }

  metrics::Collector& train_metrics() { return train_metrics_; }
  metrics::Collector& evaluation_metrics() { return evaluation_metrics_; }
  metrics::Collector* active() const { return active_.collector; }

  /// Target of log().
  struct Active {
    metrics::Collector* collector = nullptr;
    bool epoch_values = false;  ///< reading the newest values includes those of its epoch
    bool is_partial = false;    ///< these are of an epoch that a run may go on with
    bool is_over = false;       ///< its values have been handed on: log() throws levin::Error
  };
  /// Sets the target of log(); returns the one before.
  Active set_active(Active active);
  /// `is_partial`: a run that goes on with the epoch starts without them.
  void show_epoch_values(bool show, bool is_partial = false) {
    active_.epoch_values = show;
    active_.is_partial = is_partial;
  }
  void set_over(bool over) { active_.is_over = over; }

  // ---- The newest values.

  /// Newest value of every name; waits for the device where values changed.
  const MetricMap& callback_metrics();
  /// The moment (see FitProgress::moment; the batch under way included) of the newest value of this name, as far as
  /// callback_metrics has been asked; nothing for a name without a value.
  std::optional<int64_t> moment_of_metric(const std::string& name) const;
  /// Whether callback_metrics may give a value of this name made after that moment. Does not wait for the device.
  bool has_newer_metric(const std::string& name, int64_t moment) const;
  /// Combines the newest values that training steps have logged over ranks, as a logging boundary does with those of
  /// its step. A collective; nothing during an evaluation.
  void combine_step_metrics();
  MetricMap progress_bar_metrics(bool wait_for_device);
  /// Newest value of every name that the loggers were given.
  const MetricMap& logged_metrics() const { return logged_; }
  /// The newest values, for a checkpoint or another process, and takes those. `goes_on`: as they were before the values
  /// of a part of an epoch.
  State callback_metrics_state(bool goes_on);
  void load_callback_metrics(const State& state);
  void forget_metrics();
  /// Ends what an epoch that was cut short has counted: metric objects start afresh in the next call.
  void end_metrics();
  /// Drops what was counted and not handed on, after a failure.
  void forget_epochs();

  // ---- Rows.

  /// Adds to the row of the present step.
  void add_to_row(const MetricMap& values);
  /// Adds values that modules have logged, which callback_metrics gives already.
  void add_logged_to_row(const MetricMap& values);
  /// Hands the step's metrics and what was added to the loggers; with several ranks a collective.
  void log_step_row();
  /// Hands the epoch's metrics of a collector to the loggers and to callback_metrics.
  void log_epoch_row(metrics::Collector& collector);
  /// Hands what was added to the loggers.
  void emit_row();
  /// What was added and not handed on yet, for a checkpoint.
  State row_state() const;
  void load_row(const State& state);
  /// Forgets what was added.
  void discard_row() { row_size_ = 0; }

  // ---- The run's folder and the loggers.

  /// Path of the run's folder, which rank 0 makes when first asked for it.
  const std::string& run_directory();
  /// Lets rank 0 make the folder and tell the others; a collective.
  void share_run_directory();
  void set_run_directory(const std::string& directory) { run_directory_ = directory; }
  /// Forgets the folder: the next fit gets one of its own.
  void forget_run_directory();
  /// Calls `hand_over(logger, name)` for each logger, with its prefix before the name.
  template <class HandOver>
  void give_loggers(const std::string& name, const HandOver& hand_over) const {
    for (const auto& logger : options_.loggers) hand_over(*logger, with_prefix(logger->prefix(), name));
  }
  /// Starts the loggers, on rank 0. `resumed_from`: the checkpoint that a fit goes on from, or nothing.
  void start(const std::string& resumed_from, const DataModule* data_module);
  void flush();
  /// Ends the loggers, on rank 0.
  void finish(TrainerStatus status);
  /// Ends the loggers after a failure: what goes wrong here is logged.
  void finish_after_failure(TrainerStatus status);

 private:
  static void refuse_logging();
  metrics::Collector* require_active(std::string_view name) const;
  static std::string with_prefix(std::string_view prefix, std::string name);
  /// The row, with the prefix before each name.
  std::span<const MetricValue> row(std::string_view prefix);
  /// Path of the folder that a logger writes to, made when first asked for.
  std::string directory_of(const Logger& logger);
  void append_to_row(const std::string& name, double value);
  void remember(const std::string& name, double value, int64_t moment);
  void remember(const metrics::Collector::Value& value, int64_t moment);
  void remember_of_epoch(const metrics::Collector::Value& value);
  void keep_former(const std::string& name);

  const ResolvedOptions& options_;
  TrainerState& state_;
  Tracer& tracer_;
  Strategy& strategy_;
  DividedModel& model_;
  metrics::Collector train_metrics_;
  metrics::Collector evaluation_metrics_;
  Active active_;
  MetricMap latest_;
  std::map<std::string, int64_t> latest_moment_;  ///< see moment_of_metric
  /// Before the values of a part of an epoch: value and moment, or nothing.
  std::map<std::string, std::optional<std::pair<double, int64_t>>> former_;
  MetricMap latest_of_bar_;
  MetricMap logged_;
  std::vector<MetricValue> row_;
  size_t row_size_ = 0;
  std::vector<MetricValue> row_with_prefix_;
  std::string run_directory_;
  std::map<std::string, std::string> new_directories_;  ///< version_N of loggers' own, by the folder above
  bool has_hyperparameters_ = false;                    ///< the loggers of this run's folder have them
};

}  // namespace levin
