#pragma once

#include <levin/core/nn/activation_checkpointing.h>
#include <levin/core/trainer/checkpoint_connector.h>
#include <levin/core/trainer/evaluation_loop.h>
#include <levin/core/trainer/fit_loop.h>
#include <levin/core/trainer/hooks.h>
#include <levin/core/trainer/optimization.h>
#include <levin/core/trainer/prediction_loop.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// What one call of the trainer works with.
struct SessionRequest {
  Stage stage = Stage::kFit;
  std::shared_ptr<Module> module;
  std::shared_ptr<DataModule> data;
  LoaderSet given;
  std::string ckpt;
  bool tune = false;  ///< of a fit: finders run, and nothing is trained
};

/// One call of fit, validate, test or predict from set-up to teardown, in the order of docs/architecture.md, on one
/// rank.
class Session {
 public:
  explicit Session(RankCore& core);

  void fit(const SessionRequest& request);
  /// Runs the finders alone; returns what each reports.
  std::vector<std::string> tune(const SessionRequest& request);
  std::vector<MetricMap> evaluate(const SessionRequest& request);
  std::vector<std::vector<Batch>> predict(const SessionRequest& request);

  /// The whole call as this rank, which the launcher has started. Throws what failed, or RankFailedError when the cause
  /// is another rank.
  void run_rank(const SessionRequest& request);

  /// What a call has changed, for a caller in another process; see RankProgram.
  void save_outcome(const SessionRequest& request, const std::string& directory);
  void load_outcome(const SessionRequest& request, const std::string& directory);

  /// See Trainer.
  void replay_training_data();

  CheckpointConnector& checkpoints() { return checkpoints_; }
  Optimization& optimization() { return optimization_; }
  /// From here on this fit trains with so many examples in a batch of one rank; its batches and schedules are counted
  /// again. Called before its first epoch. Throws ConfigError, and nothing has changed, where other options do not
  /// allow it.
  void use_batch_size(int64_t batch_size);

 private:
  /// Throws when there is no module, or when a call is under way already.
  void require_idle(const SessionRequest& request) const;
  /// Runs the call on every local rank.
  void launch(const SessionRequest& request);
  void set_up(const SessionRequest& request);
  void set_up_data(const SessionRequest& request);
  void set_up_weights(const std::string& ckpt, bool weights_only);
  void select_loaders();
  void tear_down();
  void start_profiler();
  void finish_profiler();
  /// The module is complete: units may be hooked.
  void show_module_to_profiler();
  /// Runs on_exception and ends this rank's part; gives what is to be thrown on.
  std::exception_ptr on_error(const std::exception_ptr& error);
  void check_manual_optimization() const;
  /// The callbacks of the call: those of the options, and the module's own in place of others of their type.
  std::vector<std::shared_ptr<Callback>> callbacks_for(const SessionRequest& request) const;
  /// Everything up to on_fit_start.
  void start_fit(const SessionRequest& request);
  void run_fit(const SessionRequest& request);
  void run_tuning(const SessionRequest& request);
  void run_evaluation(const SessionRequest& request);
  void run_prediction(const SessionRequest& request);
  DataLoader train_loader() const;
  DataLoaders evaluation_loaders(const char* name, const DataLoaders& given, DataLoaders (DataModule::*of_data)(),
                                 DataLoaders (Module::*of_module)()) const;

  RankCore& core_;
  Hooks hooks_;
  CheckpointConnector checkpoints_;
  Optimization optimization_;
  EvaluationLoop evaluation_;
  FitLoop fit_loop_;
  PredictionLoop prediction_;
  std::optional<ActivationCheckpointing> checkpointing_;  ///< of the fit under way
  std::optional<ProfilerSpan> whole_call_;
  std::vector<std::vector<Batch>> predictions_;
  std::vector<std::string> reports_;  ///< of the finders of `tune`
};

}  // namespace levin
