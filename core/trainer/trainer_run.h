#pragma once

#include <levin/core/interfaces/launcher.h>
#include <levin/core/nn/activation_checkpointing.h>
#include <levin/core/trainer/run_result.h>
#include <levin/core/trainer/trainer_components.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// What a call of the trainer was given.
struct RunRequest {
  Stage stage = Stage::kFit;
  std::shared_ptr<Module> module;
  std::shared_ptr<DataModule> data;
  StageLoaders loaders;
  std::string ckpt;
  bool tune = false;  ///< of a fit: tuners run, and nothing is trained
};

/// Runs one call of fit, tune, validate, test or predict, from set-up to teardown, in the order of
/// docs/architecture.md.
class TrainerRun final : private RankProgram {
 public:
  /// Runs a call as another local rank, on a thread of its own.
  using RunThreadRank =
      std::function<void(const std::shared_ptr<Strategy>& strategy, const RunRequest& request, int64_t local_rank)>;

  /// `components`, `request`: outlive the run.
  TrainerRun(TrainerComponents& components, const RunRequest& request) : parts_(components), request_(request) {}

  /// Runs the call on every local rank. Throws levin::Error when there is no module, or when a call is under way
  /// already; and what the call throws.
  RunResult launch(RunThreadRank run_thread_rank);
  /// Runs the call as this rank, which a launcher has started. Throws what failed, or RankFailedError when the cause is
  /// another rank.
  void run_rank();

 private:
  // ---- RankProgram
  void run(int64_t local_rank) override;
  void save_outcome(const std::string& directory) override;
  void load_outcome(const std::string& directory) override;

  void require_idle() const;
  /// Throws ConfigError where options or the strategy want to do what the module does itself.
  void check_manual_optimization() const;
  StrategySetup strategy_setup();

  void set_up();
  void set_up_backends() const;
  void configure_model();
  void set_up_weights(bool weights_only);
  void tear_down();
  /// Runs on_exception and ends this rank's part; gives what is to be thrown on.
  std::exception_ptr on_error(const std::exception_ptr& thrown);
  /// What `error` goes back to: where another rank failed, and this one's communication therefore, the failure of that
  /// rank as a RankFailedError.
  std::exception_ptr root_cause(const std::exception_ptr& error) const;
  /// The callbacks of the call: those of the options, and the module's own in place of others of their type.
  std::vector<std::shared_ptr<Callback>> callbacks() const;

  /// Everything up to on_fit_start.
  void start_fit();
  void fit();
  void tune();
  void evaluate();
  void predict();

  TrainerComponents& parts_;
  const RunRequest& request_;
  RunThreadRank run_thread_rank_;
  RunResult result_;
  std::optional<ActivationCheckpointing> checkpointing_;  ///< of a fit
};

/// Gives a trainer's next fit its fresh counters, run folder and seeds.
void begin_fit(TrainerComponents& components);

}  // namespace levin
