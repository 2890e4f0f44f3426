#pragma once

#include <levin/core/base/signals.h>
#include <levin/core/interfaces/launcher.h>
#include <levin/core/trainer/call_scope.h>
#include <levin/core/trainer/run_request.h>
#include <levin/core/trainer/run_result.h>
#include <levin/core/trainer/trainer_components.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace levin {

/// Runs one call of fit, tune, validate, test or predict: checks it, launches its ranks, and has what they give back.
class TrainerRun final : private RankProgram {
 public:
  /// Runs a call as another local rank, on a thread of its own.
  using RunThreadRank =
      std::function<void(const std::shared_ptr<Strategy>& strategy, const RunRequest& request, int64_t local_rank)>;

  /// `components`, `request`: outlive the run.
  TrainerRun(TrainerComponents& components, const RunRequest& request) : parts_(components), request_(request) {}

  /// Runs the call on every local rank. Throws what the call throws. Requires: a CallScope.
  RunResult launch(RunThreadRank run_thread_rank);

  /// Begins a call of which this process runs one rank, on whichever threads. Throws as launch.
  void open();
  /// Ends it.
  void close();

 private:
  // ---- RankProgram
  void run(int64_t local_rank) override;
  void save_outcome(const std::string& directory) override;
  void load_outcome(const std::string& directory) override;

  void start_anew();
  void prepare();
  /// Throws ConfigError where options or the strategy want to do what the module does itself.
  void check_manual_optimization() const;

  TrainerComponents& parts_;
  const RunRequest& request_;
  RunThreadRank run_thread_rank_;
  // From open to close.
  std::optional<CallScope> call_;
  std::optional<SignalScope> signals_;
  std::shared_ptr<void> token_;  ///< while it lives, requests of the stop token are passed on
  uint64_t seed_ = 0;            ///< of the calling thread
  RunResult result_;
};

}  // namespace levin
