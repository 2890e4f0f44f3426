#pragma once

#include <levin/core/base/error.h>
#include <levin/core/comm/rank_failure.h>
#include <levin/core/comm/whereabouts.h>
#include <levin/core/interfaces/checkpointer.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/logger.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/profiler.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/metrics/collector.h>
#include <levin/core/optim/parameter_names.h>
#include <levin/core/optim/scheduler.h>
#include <levin/core/precision/precision.h>
#include <levin/core/trainer/batch_prefetch.h>
#include <levin/core/trainer/progress.h>
#include <levin/core/trainer/resolved_options.h>
#include <levin/core/trainer/span_names.h>
#include <levin/core/trainer/trainer.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// What an exception says, without LibTorch's list of C++ calls.
std::string error_message(const std::exception_ptr& error);

/// A scheduler with the settings of its optimizer's configuration.
struct ScheduledRate {
  std::shared_ptr<optim::Scheduler> scheduler;
  SchedulerConfig config;
  size_t optimizer = 0;  ///< index of the optimizer
};

/// The loaders of the call under way.
struct LoaderSet {
  DataLoader train;
  DataLoaders val;
  DataLoaders test;
  DataLoaders predict;
};

/// Everything that one rank runs hangs from this object; the module points to it. The loops and connectors share it.
class RankCore final : public detail::ModuleRuntime {
 public:
  RankCore(Trainer& trainer, TrainerOptions options);
  ~RankCore() override;

  // ---- What users asked for.
  const TrainerOptions options;
  ResolvedOptions resolved;
  Config config;

  // ---- Who takes part.
  std::shared_ptr<Module> user_module;
  std::shared_ptr<DataModule> data;
  LoaderSet given;                                   ///< handed to the call
  LoaderSet loaders;                                 ///< in use
  std::vector<std::shared_ptr<Callback>> callbacks;  ///< sorted; see set_callbacks
  size_t first_after_metrics = 0;                    ///< index of the first callback that acts on metrics
  size_t first_checkpointer = 0;                     ///< index of the first checkpointer
  std::vector<std::unique_ptr<OptimizerHandle>> optimizer_handles;
  std::vector<OptimizerHandle*> optimizer_list;
  std::vector<ScheduledRate> schedulers;
  optim::ParameterNames parameter_names;
  Profiler* profiler = nullptr;  ///< during a call that is profiled
  SpanNames span_names;

  // ---- Where the run is.
  FitProgress progress;
  EvaluationProgress evaluation;
  Stage stage = Stage::kFit;
  RunningStage running = RunningStage::kIdle;
  TrainerStatus status = TrainerStatus::kInitializing;
  uint64_t data_seed = 0;
  int64_t fits = 0;  ///< calls of fit; each has a run folder of its own
  optim::AccumulationSchedule accumulation;
  double loss_weight = 1;       ///< of this rank's loss in the mean over the ranks, in the batch under way
  bool stepped = false;         ///< the batch under way took an optimizer step
  bool resumed = false;         ///< this fit continues from a checkpoint
  bool in_fit_loop = false;     ///< batches are under way: a checkpoint waits for a moment that can be resumed
  bool exact_moment = false;    ///< now is such a moment
  bool stop_requested = false;  ///< agreed by all ranks
  std::string stop_reason;
  std::string stop_wish;     ///< why this rank alone wants to stop; see agree_on_stop
  bool shares_data = false;  ///< the data module is another rank's of this process
  bool muted = false;        ///< the batch under way is no data of this rank's: nothing is logged
  /// Examples in a training batch of one rank, where a search has found out how many; else the loader says
  std::optional<int64_t> train_batch_size;
  std::optional<int64_t> train_batches;     ///< an epoch's, after limits; nothing while unsized
  std::vector<int64_t> evaluation_batches;  ///< each loader's, after limits; -1 where unsized
  std::chrono::steady_clock::time_point fit_started;
  Whereabouts whereabouts;
  double elapsed_before = 0;
  std::chrono::nanoseconds data_wait{0};  ///< that this fit waited for training batches

  // ---- Metrics.
  metrics::Collector train_metrics;
  metrics::Collector evaluation_metrics;
  metrics::Collector* active_metrics = nullptr;
  int64_t evaluation_loader = 0;

  Strategy& strategy() const { return *resolved.strategy; }
  Precision& precision() const { return *resolved.precision; }
  Module& module() const { return *user_module; }
  const std::vector<std::shared_ptr<Logger>>& loggers() const { return resolved.loggers; }
  std::vector<Checkpointer*> checkpointers() const;
  /// Sorts the callbacks by when they run.
  void set_callbacks(std::vector<std::shared_ptr<Callback>> all);
  bool is_global_zero() const { return rank() == 0; }
  int64_t rank() const { return strategy().environment().rank(); }
  int64_t world_size() const { return strategy().environment().world_size(); }
  /// Ranks that train on different data, and which of them this is.
  int64_t data_ranks() const { return strategy().data_share().count; }
  int64_t data_rank() const { return strategy().data_share().index; }
  /// What rank 0 has, on every rank; a collective.
  std::string from_rank_zero(const std::string& value) const;
  /// Whether the ranks of this process are threads.
  bool has_thread_ranks() const { return strategy().ranks_are_threads(); }
  StrategySetup strategy_setup();
  /// Counters as a fresh fit has them.
  void begin_fit();
  /// What `error` goes back to: where another rank failed, and this one's communication therefore, the failure of that
  /// rank as a RankFailedError.
  std::exception_ptr root_cause(const std::exception_ptr& error) const;
  /// For two questions at once whether any rank says yes; a collective.
  std::pair<bool, bool> any_rank(bool first, bool second) const;
  /// Whether any rank wants to stop, now that all are at the same place; a collective.
  void agree_on_stop();
  double elapsed_seconds() const;
  /// Optimizer steps of the whole run; nothing when it has no planned end.
  std::optional<int64_t> estimated_steps() const;

  // ---- ModuleRuntime
  Trainer& trainer() override { return trainer_; }
  void log(std::string_view name, const at::Tensor& value, const LogOptions& options) override;
  void log(std::string_view name, double value, const LogOptions& options) override;
  void log(std::string_view name, metrics::Metric& metric, const LogOptions& options) override;
  const at::Device& device() const override { return strategy().root_device(); }
  int64_t dataloader_idx() const override { return evaluation_loader; }
  std::vector<OptimizerHandle*>& optimizers() override { return optimizer_list; }
  void manual_backward(const at::Tensor& loss, const BackwardOptions& options) override;
  void clip_gradients(OptimizerHandle& optimizer, double value, ClipAlgorithm algorithm, bool in_step) override;
  at::Tensor all_gather(const at::Tensor& tensor) override;
  void use_early_copies(Batch& batch, const at::Device& to) override;

  // ---- Logging.
  /// Newest value of every name; waits for the device where values changed.
  const MetricMap& callback_metrics();
  MetricMap progress_bar_metrics(bool wait_for_device);
  /// Adds to the row of the present step.
  void add_to_row(const MetricMap& values);
  /// Hands the step's metrics and what was added to the loggers.
  void log_step_row();
  /// Hands the epoch's metrics of a collector to the loggers and to callback_metrics.
  void log_epoch_row(metrics::Collector& collector);
  /// Hands what was added to the loggers.
  void emit_row();
  /// Forgets what was added.
  void discard_row() { row_size_ = 0; }
  /// From here on reading callback_metrics includes the epoch's values of the active collector.
  bool epoch_values_visible = false;
  MetricMap& metrics_cache() { return metrics_cache_; }
  void forget_metrics() {
    metrics_cache_.clear();
    bar_cache_.clear();
  }

  // ---- Files.
  /// Made when first asked for, by rank 0.
  const std::string& run_directory();
  /// Rank 0 makes it and tells the others; a collective.
  void share_run_directory();
  void set_run_directory(const std::string& directory) { run_directory_ = directory; }
  /// The next fit gets a folder of its own.
  void forget_run_directory();
  /// `resumed_from`: the checkpoint that a fit goes on from, or nothing.
  void start_loggers(const std::string& resumed_from);

  // ---- Data.
  /// Runs the transfer hooks and moves the batch to the device. The copy of `next`, the batch to be transferred after
  /// it, is started where it can go on beside this batch's step.
  Batch transfer(Batch batch, int64_t dataloader_idx, const std::optional<Batch>& next = std::nullopt);
  /// During a call whose device can copy while it computes; else nullptr.
  BatchPrefetch* prefetch() const { return prefetch_.get(); }
  void set_prefetch(std::unique_ptr<BatchPrefetch> prefetch) { prefetch_ = std::move(prefetch); }
  /// Frees what was copied ahead.
  void drop_early_copies() {
    if (prefetch_ != nullptr) prefetch_->clear();
  }
  /// Images and volumes as the option memory_format says; others as they are.
  at::Tensor in_memory_format(const at::Tensor& tensor) const;
  DataLoaderPosition position(int64_t epoch, int64_t batch) const;
  /// Of the training loader: the whole loader where its batches are not divided over the ranks.
  DataLoaderPosition train_position() const;
  /// Ranks that the batches of training are divided over.
  int64_t train_shares() const { return options.use_distributed_sampler ? data_ranks() : 1; }
  /// Examples in a training batch of all ranks together.
  int64_t global_batch_size() const { return loaders.train.batch_size(train_shares()) * train_shares(); }

 private:
  template <class Value>
  void log_value(std::string_view name, Value&& value, const LogOptions& options);
  void append_to_row(const std::string& name, double value);

  Trainer& trainer_;
  MetricMap metrics_cache_;
  MetricMap bar_cache_;
  std::vector<MetricValue> row_;
  size_t row_size_ = 0;
  std::string run_directory_;
  bool loggers_started_ = false;
  std::unique_ptr<BatchPrefetch> prefetch_;
};

}  // namespace levin
