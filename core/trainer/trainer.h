#pragma once

#include <levin/core/base/events.h>
#include <levin/core/export/export_options.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/rank_mesh.h>
#include <levin/core/metrics/metric_map.h>
#include <levin/core/optim/parameter_names.h>
#include <levin/core/options/options.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

namespace levin {

class Checkpointer;
struct RunRequest;
struct RunResult;
struct TrainerComponents;

namespace detail {
[[noreturn]] void throw_other_data_module(const DataModule* data, const std::type_info& needed);
}  // namespace detail

/// Trains, validates, tests and predicts with a module. All calls may be made in any order, several times.
class Trainer {
 public:
  /// Checks every option and every conflict between options. Throws ConfigError.
  explicit Trainer(TrainerOptions options = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains. `ckpt`: empty for a fresh start, "last", "auto" (last, or a fresh start where there is none), "best" or
  /// the path of a checkpoint to resume from. What user code throws passes through with its type, after on_exception;
  /// its text also says where it happened.
  void fit(std::shared_ptr<Module> module, std::shared_ptr<DataModule> data, const std::string& ckpt = "");
  void fit(std::shared_ptr<Module> module, DataLoader train = {}, DataLoaders val = {}, const std::string& ckpt = "");
  /// Trains without validation data of the call. (A template, so that `{}` stands for no validation data.)
  template <std::convertible_to<std::string> Ckpt>
  void fit(std::shared_ptr<Module> module, DataLoader train, const Ckpt& ckpt) {
    fit(std::move(module), std::move(train), DataLoaders(), std::string(ckpt));
  }
  /// Runs the tuners among the callbacks (a learning_rate_finder where there is none) as fit would, and trains
  /// nothing. Returns what each has found, in words. `ckpt` picks the weights; empty keeps those the module has.
  std::vector<std::string> tune(std::shared_ptr<Module> module, std::shared_ptr<DataModule> data,
                                const std::string& ckpt = "");
  std::vector<std::string> tune(std::shared_ptr<Module> module, DataLoader train = {}, DataLoaders val = {},
                                const std::string& ckpt = "");
  template <std::convertible_to<std::string> Ckpt>
  std::vector<std::string> tune(std::shared_ptr<Module> module, DataLoader train, const Ckpt& ckpt) {
    return tune(std::move(module), std::move(train), DataLoaders(), std::string(ckpt));
  }
  /// Validate and test: return one map of metrics for each loader. `ckpt` picks the weights; empty keeps those of the
  /// module. `verbose`: rank 0 prints the metrics as a table, on standard error.
  std::vector<MetricMap> validate(std::shared_ptr<Module> module, std::shared_ptr<DataModule> data,
                                  const std::string& ckpt = "", bool verbose = true);
  std::vector<MetricMap> validate(std::shared_ptr<Module> module, DataLoaders loaders = {},
                                  const std::string& ckpt = "", bool verbose = true);
  std::vector<MetricMap> test(std::shared_ptr<Module> module, std::shared_ptr<DataModule> data,
                              const std::string& ckpt = "", bool verbose = true);
  std::vector<MetricMap> test(std::shared_ptr<Module> module, DataLoaders loaders = {}, const std::string& ckpt = "",
                              bool verbose = true);
  /// Tests the module of the last call, with that call's data module or the module's own test_dataloader, by the best
  /// weights that it has saved, or by those of another `ckpt`. Throws levin::Error before the first call.
  std::vector<MetricMap> test(const std::string& ckpt = "best", bool verbose = true);
  /// Predicts; returns the predictions of every batch, one list for each loader, on the CPU. With several ranks those
  /// of all: a batch whose parts differ between ranks in more than the number of rows (in width, or by a number of the
  /// whole batch) comes in parts, in the order of the ranks. `return_predictions` false: only callbacks get them, and
  /// memory does not grow with the data; unset: so where a callback takes them (prediction_writer).
  std::vector<std::vector<Batch>> predict(std::shared_ptr<Module> module, std::shared_ptr<DataModule> data,
                                          const std::string& ckpt = "", std::optional<bool> return_predictions = {});
  std::vector<std::vector<Batch>> predict(std::shared_ptr<Module> module, DataLoaders loaders = {},
                                          const std::string& ckpt = "", std::optional<bool> return_predictions = {});
  /// Writes what the module's export_step computes of a batch like `example` to a file for other programs; see
  /// docs/export.md. `ckpt` picks the weights; empty keeps those of the module. Rank 0 alone writes. Throws
  /// levin::Error naming what cannot be exported; then there is no file, or still the old one.
  ExportReport export_model(std::shared_ptr<Module> module, const Batch& example, const std::string& path,
                            const std::string& ckpt = "", const ExportOptions& options = {});
  /// Likewise, with the first batch of the data as example: of those of prediction, else of test, validation or
  /// training. They are set up as for a call, so that configure_model may read them. `data`: nullptr where the module
  /// has the data hooks.
  ExportReport export_model(std::shared_ptr<Module> module, std::shared_ptr<DataModule> data, const std::string& path,
                            const std::string& ckpt = "", const ExportOptions& options = {});
  /// Makes the module's layers and loads the weights that `ckpt` names, or where it is empty those of `init_from`, in
  /// this process and whole; no rank starts. For what a program does with a trained module beside these calls.
  void load_weights(std::shared_ptr<Module> module, const std::string& ckpt);
  /// Starts the ranks of the strategy as `predict` does, makes the module's layers, loads the weights as `load_weights`
  /// does, of which each rank has its part, and runs `work` on every rank with the rank's trainer, whose module() it
  /// is. For what a program does with a trained model that ranks divide: forwards are collectives there. Loggers and
  /// callbacks' hooks of prediction are left out.
  void run_on_ranks(std::shared_ptr<Module> module, const std::string& ckpt,
                    const std::function<void(Trainer& rank)>& work);

  // ---- Where training is.

  int64_t current_epoch() const;  ///< 0-based
  int64_t global_step() const;    ///< optimizer steps taken
  int64_t batch_idx() const;      ///< 0-based, of the batch under way or last done in this epoch
  int64_t total_batches() const;  ///< training batches done in all epochs
  /// Number that the ages of metrics are told by: total_batches, where an epoch without any counts as one.
  int64_t moment() const;
  int64_t moment_before_epoch() const;  ///< moment() where this epoch began
  bool epoch_complete() const;          ///< no batch is left in this epoch; false where training ends inside of it
  bool epoch_cut_short() const;         ///< a module's on_train_batch_start ended this epoch
  bool validates() const;               ///< this fit has validation batches
  bool validated() const;               ///< a validation of this fit, or of the run that it resumes, is over
  /// Training batches an epoch; nothing while the loader is unsized.
  std::optional<int64_t> num_training_batches() const;
  /// Batches of each loader of the evaluation or prediction under way; -1 where a loader is unsized.
  std::vector<int64_t> num_evaluation_batches() const;
  /// Optimizer steps of the whole run as planned; nothing when it has no planned end.
  std::optional<int64_t> estimated_steps() const;
  std::optional<int64_t> max_epochs() const;
  /// Whether this fit goes on from a checkpoint and has not begun a batch yet.
  bool resumed() const;
  RunningStage running_stage() const;
  /// The last call: fit, validate, test or predict.
  Stage stage() const;
  TrainerStatus status() const;
  bool sanity_checking() const { return running_stage() == RunningStage::kSanityCheck; }
  /// Training time so far in seconds, that of the runs it resumes included.
  double elapsed_seconds() const;
  /// Seconds that this fit has waited for training batches (where no worker fetches them, the fetching itself).
  double data_wait_seconds() const;

  // ---- Metrics. Reading a value that is on a device waits for it.

  /// Everything logged so far, newest value of each name.
  const MetricMap& callback_metrics() const;
  /// How old the value is that callback_metrics gave last: moment() when it was made, the batch under way included;
  /// nothing for a name without a value. See MonitoredValue.
  std::optional<int64_t> moment_of_metric(const std::string& name) const;
  /// Lets callback_metrics give on every rank what all ranks have logged in training steps, as a logging boundary does
  /// for its step. Inside of fit; all ranks call it.
  void combine_step_metrics();
  /// Of these the values that the loggers got.
  MetricMap logged_metrics() const;
  /// Values logged with prog_bar. `wait_for_device` false leaves out a newer value that is still being computed.
  MetricMap progress_bar_metrics(bool wait_for_device = true) const;
  /// Hands values to the loggers at the present step, beside those of the module.
  void log_metrics(const MetricMap& values);
  /// Hands an image to the loggers at the present step: uint8 or floating values between 0 and 1 (others are clamped),
  /// [channels, height, width] with 1, 3 or 4 channels. `make_grid` makes one of many. Rank 0 logs its own; others may
  /// call it too. Waits for the image's device.
  void log_image(const std::string& name, const at::Tensor& image);

  /// Hands a text to the loggers, or the distribution of a tensor's values, at the present step, likewise.
  void log_text(const std::string& name, const std::string& text);
  void log_histogram(const std::string& name, const at::Tensor& values);
  /// Hands the graph of the module to the loggers: what its export_step makes of a batch like `example`, which has the
  /// module's device. Rank 0 logs its own; others may call it too. Throws levin::Error naming what cannot be traced.
  void log_graph(const Batch& example);

  /// Logs a number of this rank's own, which is none of its batch: ranks that have no batch, or no outputs, log it too,
  /// all of them the same names. Inside fit.
  void log_rank_value(std::string_view name, double value, const LogOptions& options);
  /// Hands what `log` logs to the loggers as a row of its own, after the last row of training. A collective where
  /// several ranks train; every rank logs the same names.
  void log_last_row(const std::function<void()>& log);

  // ---- Who is who.

  bool is_global_zero() const { return global_rank() == 0; }
  int64_t global_rank() const;
  int64_t world_size() const;
  /// How the ranks of the call under way are laid out; between calls, as one rank.
  RankMesh mesh() const;
  const at::Device& device() const;
  const std::vector<at::Device>& devices() const;  ///< of this host, one for each local rank or replica
  /// Whether this rank has no data for the batch under way, and only joins the step of the others; what it computes
  /// counts nowhere.
  bool is_joining() const;
  Strategy& strategy() const;
  Precision& precision() const;
  Module& module() const;
  DataModule* data_module() const;
  /// Returns the data module as the type that the caller needs. Throws levin::Error where there is none, or another.
  template <class Data>
  Data& data_module() const {
    if (auto* const data = dynamic_cast<Data*>(data_module())) return *data;
    detail::throw_other_data_module(data_module(), typeid(Data));
  }
  /// The training loader of the fit under way.
  const DataLoader& train_dataloader() const;
  /// Ranks that the batches of training are divided over.
  int64_t train_ranks() const;
  const std::vector<std::shared_ptr<Callback>>& callbacks() const;
  const std::vector<std::shared_ptr<Logger>>& loggers() const;
  const std::vector<OptimizerHandle*>& optimizers() const;
  /// Names of the tensors that the optimizers step: parameters of the module, or this rank's parts of them.
  const optim::ParameterNames& parameter_names() const;
  /// The profiler of the call under way; nullptr where it has none. See ProfilerSpan.
  Profiler* profiler() const;
  /// Learning rates by name, one for each optimizer and parameter group: "lr-AdamW", "lr-AdamW/pg1", "lr-AdamW-1".
  std::vector<std::pair<std::string, double>> learning_rates() const;
  const TrainerOptions& options() const;
  /// Sets the resolved configuration, which is embedded in every checkpoint, handed to the loggers and written to
  /// config.yaml in the run's folder.
  void set_config(const Config& config);
  /// The first callback that saves checkpoints, or nullptr.
  Checkpointer* checkpoint_callback() const;

  // ---- Files.

  /// The run's folder below default_root_dir, made when first asked for; empty when nothing writes (fast_dev_run, or
  /// neither loggers nor checkpoints).
  std::string run_directory() const;
  const std::string& default_root_dir() const { return options().default_root_dir; }
  /// Saves the whole state so that fit can resume from it. Inside training the checkpoint is written at the next moment
  /// that can be resumed exactly (the end of the batch, of an evaluation batch or of the epoch); otherwise at once.
  /// Throws levin::Error in a fit before on_fit_start, where there are no optimizers yet.
  void save_checkpoint(const std::string& path, const CheckpointEvent& event = {});
  /// Whether a checkpoint is to be written there, or is being written.
  bool is_saving(const std::string& path) const;

  // ---- Forwards outside of steps, such as samples that a hook draws.

  /// Makes a forward compute in the trainer's precision, as in a step, until what is returned goes.
  [[nodiscard]] std::shared_ptr<void> autocast();
  /// Gathers the parameters of a module (the trained one, or one inside of it) where ranks divide them, until what is
  /// returned goes: within one hook. They have the type that the model computes with; of what is written to them each
  /// rank keeps its part. Collective. Units gather their own parameters wherever all ranks call them; this is for what
  /// lies outside of units. Does nothing in a pipeline, whose stages have their own units only.
  [[nodiscard]] std::shared_ptr<void> full_parameters(const torch::nn::Module& module);

  // ---- Memory.

  /// Says what the module of this rank holds, by unit, and what its device has allocated, in several lines for people.
  /// Every error that says that memory does not suffice has it.
  std::string memory_summary() const;

  // ---- Control.

  /// Ends training after the present batch, no sooner than min_epochs and min_steps allow; while nothing runs, the next
  /// fit. It is not taken back. The run has ended then: `ckpt` "auto" trains no further from its last checkpoint, as
  /// "last" does. Thread-safe.
  void request_stop(const std::string& reason);
  /// Ends training in the same way, for now: "auto" goes on later, as after a signal. Thread-safe.
  void request_pause(const std::string& reason);
  /// Ends every fit as request_stop does once the token's source asks for it, be it before the fit or from any thread
  /// during it; the status is kInterrupted then. While nothing runs. An empty token: none any more.
  void set_stop_token(std::stop_token token);
  /// Asks for the same for a reason that may pass before that, as a metric that stopped improving: `reason` is what
  /// this callback says now, and takes the place of what it said before; empty: none any more. All ranks say the same.
  void set_stop_reason(const Callback& who, const std::string& reason);
  /// Whether a signal, on any rank, ended the batches of this fit; the same on all ranks.
  bool fit_interrupted() const;
  /// Whether training ends here, as a run that goes on by `ckpt` "auto" from a checkpoint saved now knows: at max_steps
  /// or max_time, or because it was asked for. The same on all ranks.
  bool fit_ended() const;
  /// Whether the fit under way, or the last one, was asked to stop, or the next one is.
  bool stop_requested() const;
  /// Whether a signal asked the program to end.
  bool interrupted() const;
  /// Number of that signal, or 0.
  int interrupt_signal() const;
  /// Sets the batches in an optimizer step, by epoch, for the rest of this fit. Learning rate schedules that span the
  /// run see it when it is set in a `setup` hook.
  void set_accumulate_grad_batches(optim::AccumulationSchedule schedule);
  /// Batches in an optimizer step of the present epoch.
  int64_t accumulate_grad_batches() const;
  /// Trains with so many examples in a batch of one rank from here on, and counts batches and schedules again. Before
  /// the first epoch of a fit, on every rank. Throws ConfigError, and nothing has changed, where other options do not
  /// allow it.
  void set_train_batch_size(int64_t batch_size);
  /// The learning rate that configure_optimizers gives the first group of the first optimizer; there must be one.
  double learning_rate() const;
  /// Sets that group's learning rate, and all others' in the proportions of configure_optimizers. Schedulers do not
  /// notice.
  void set_learning_rate(double rate);
  /// Starts schedulers anew from this learning rate, as though configure_optimizers had given it.
  void restart_schedules(double rate);
  /// Replaces all schedulers by this one, from the present learning rates on; the module's hook lr_scheduler_step steps
  /// it. For automatic optimization; a callback that resumes calls it in on_fit_start, before the scheduler's state is
  /// restored. Throws levin::Error where there is not one optimizer.
  void replace_schedulers(std::shared_ptr<optim::Scheduler> scheduler, Interval interval);
  /// Runs training_step once more on every batch of this rank's training data, without gradients, for what a forward
  /// pass leaves in the module (running statistics). Nothing is logged, no hooks are called but those of the transfer,
  /// and neither the loaders' positions nor random generators change.
  void replay_training_data();

 private:
  friend class DryRun;
  friend class Engine;
  friend class ThreadRank;

  RunResult run(const RunRequest& request);
  /// Attaches the module for a call without ranks. Throws levin::Error where there is none, or a call is under way.
  void begin_local(const std::shared_ptr<Module>& module, std::string_view call);
  std::vector<MetricMap> evaluate(const RunRequest& request, bool verbose);
  std::unique_ptr<TrainerComponents> components_;
  std::shared_ptr<Module> last_module_;
  std::shared_ptr<DataModule> last_data_;
};

/// Makes the module of a checkpoint from its saved options, then loads its weights. `path`: a checkpoint of Levin;
/// where options are given, any file or folder of weights. The module has no trainer meanwhile: one whose
/// configure_model needs data is given to a call of the trainer with its checkpoint instead. `strict` false: tensors
/// that do not fit are reported and left as the module makes them.
template <class M>
std::shared_ptr<M> load_from_checkpoint(const std::string& path);
template <class M, std::same_as<bool> Strict>
std::shared_ptr<M> load_from_checkpoint(const std::string& path, Strict strict);
/// Makes a module from these options, as where they were not recorded or have changed, then loads its weights.
template <class M>
std::shared_ptr<M> load_from_checkpoint(const std::string& path, const OptionsOf<M>& options, bool strict = true);

namespace detail {
Config saved_hyper_parameters(const std::string& path);
void load_checkpoint_weights(Module& module, const std::string& path, bool strict);
}  // namespace detail

template <class M>
std::shared_ptr<M> load_from_checkpoint(const std::string& path, const OptionsOf<M>& options, bool strict) {
  auto module = make<M>(options);
  detail::load_checkpoint_weights(*module, path, strict);
  return module;
}

template <class M>
std::shared_ptr<M> load_from_checkpoint(const std::string& path) {
  return load_from_checkpoint<M>(path, /*strict=*/true);
}

template <class M, std::same_as<bool> Strict>
std::shared_ptr<M> load_from_checkpoint(const std::string& path, Strict strict) {
  return load_from_checkpoint<M>(
      path, parse_options<OptionsOf<M>>(detail::saved_hyper_parameters(path), "hyper_parameters"), strict);
}

}  // namespace levin
