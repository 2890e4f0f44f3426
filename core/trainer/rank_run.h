#pragma once

#include <levin/core/base/debug_checks.h>
#include <levin/core/base/log.h>
#include <levin/core/base/quiet_scope.h>
#include <levin/core/nn/activation_checkpointing.h>
#include <levin/core/nn/anomaly_units.h>
#include <levin/core/nn/kernel_scope.h>
#include <levin/core/trainer/run_request.h>
#include <levin/core/trainer/run_result.h>
#include <levin/core/trainer/trainer_components.h>

#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// What a thread is in while it runs a rank: the scopes of messages and kernels, and the rank's device.
class RankScopes {
 public:
  /// `is_quiet`: warnings alone are printed.
  RankScopes(TrainerComponents& components, bool is_quiet);

 private:
  log::RankScope rank_;
  KernelScope kernels_;
  std::optional<log::QuietScope> quiet_;
  c10::OptionalDeviceGuard device_;
};

/// Runs one call of the trainer on one rank, from set-up to teardown, in the order of docs/architecture.md.
class RankRun {
 public:
  /// `components`, `request`: outlive the run.
  RankRun(TrainerComponents& components, const RunRequest& request) : parts_(components), request_(request) {}

  /// Runs the call and returns this rank's result. Throws what failed, or RankFailedError when the cause is another
  /// rank.
  RunResult run();

  // ---- In parts, for the steps of a caller of its own (Engine), each in RankScopes.

  /// Runs the set-up of a fit, to where its loop begins.
  void begin();
  /// Runs what follows the loop.
  void end();
  /// Ends the rank after an error; returns what is to be thrown on.
  std::exception_ptr fail(const std::exception_ptr& thrown);

 private:
  void set_up();
  void set_up_backends() const;
  void share_generators();
  void configure_model();
  void set_up_weights(bool weights_only);
  void tear_down();
  /// Whether SIGUSR1 has ended a fit on any rank; a collective.
  bool is_asked_to_requeue() const;
  /// Puts the SLURM job back into the queue, if the run can go on there.
  void requeue() const;
  /// Calls on_exception and teardown, and ends this rank's part; returns what is to be thrown on.
  std::exception_ptr on_error(const std::exception_ptr& thrown);
  /// Returns the callbacks of the call: those of the options, and the module's own in place of others of their type.
  std::vector<std::shared_ptr<Callback>> callbacks() const;

  /// Everything up to on_fit_start.
  void start_fit();
  /// Everything up to the loop, and what follows it.
  void begin_fit();
  void end_fit();
  void fit();
  void tune();
  void evaluate();
  void predict();

  TrainerComponents& parts_;
  const RunRequest& request_;
  RunResult result_;
  std::string absent_;  ///< message of values that an earlier call left absent, and this one was not given
  std::optional<DebugChecks> debug_checks_;
  std::optional<ActivationCheckpointing> checkpointing_;  ///< of a fit
  std::optional<torch::autograd::DetectAnomalyGuard> anomaly_;
  std::optional<AnomalyUnits> anomaly_units_;
  /// The rank's, for what names a kind of device without an index.
  std::optional<c10::OptionalDeviceGuard> current_device_;
};

}  // namespace levin
