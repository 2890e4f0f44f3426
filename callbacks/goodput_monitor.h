#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/callback.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace levin {

/// Options of GoodputMonitor, explained in describe().
struct GoodputMonitorOptions {
  double save_every = 10;
  static void describe(Schema<GoodputMonitorOptions>& schema);
};

/// Logs which share of a job's time became progress and what the rest was spent on, at logging boundaries and, in
/// words, at the end: "goodput/progress_percent", "goodput/start_percent" and so on, and "goodput/seconds", the job's
/// time. The job is all runs that went on from each other's checkpoints, with the time between them. Steps count as
/// progress, with their hooks, logging and waiting for other ranks.
///
/// Times are those of rank 0's host. The sums are part of every checkpoint and, every few seconds, written to
/// goodput.json in the run's folder: a run that goes on from a checkpoint finds there how long its predecessor lived
/// on, and the steps that this took after the checkpoint count as repeated. Without that file they count as down.
class GoodputMonitor final : public Callback {
 public:
  using Options = GoodputMonitorOptions;

  /// What time is spent on.
  enum class Cause : uint8_t {
    kProgress,
    kStart,       ///< from the setup of the call to the first batch
    kData,        ///< waiting for training batches
    kCheckpoint,  ///< as far as training waits for it
    kValidation,
    kRepeated,  ///< progress that was lost, since it is in no checkpoint that the job went on from
    kDown       ///< between two runs
  };
  static constexpr size_t kCauses = 7;
  using Seconds = std::array<double, kCauses>;

  explicit GoodputMonitor(const Options& options = {});

  /// Returns the seconds of the job so far, by cause.
  Seconds seconds() const;

  void setup(Trainer& trainer, Module& module, Stage stage) override;
  void on_train_start(Trainer& trainer, Module& module) override;
  void on_train_epoch_start(Trainer& trainer, Module& module) override;
  void on_train_batch_start(Trainer& trainer, Module& module, const Batch& batch, int64_t batch_idx) override;
  void on_train_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                          int64_t batch_idx) override;
  void on_train_epoch_end(Trainer& trainer, Module& module) override;
  void on_validation_start(Trainer& trainer, Module& module) override;
  void on_validation_end(Trainer& trainer, Module& module) override;
  void on_train_end(Trainer& trainer, Module& module) override;
  void on_fit_end(Trainer& trainer, Module& module) override;
  void on_exception(Trainer& trainer, Module& module, const std::exception_ptr& error) override;

  State state_dict() const override;
  void load_state_dict(const State& state) override;

 private:
  using Clock = std::chrono::steady_clock;

  /// Counts the time since the last call for `cause`, but for what was waited for data in it.
  void count(Cause cause);
  /// The same at a hook that checkpoints follow: between it and the next one is what they take, if any was made.
  void count_before_checkpoints(Cause cause);
  void log_values(Trainer& trainer);
  void write(const Trainer& trainer);
  void end(const Trainer& trainer);

  const Options options_;
  const Trainer* trainer_ = nullptr;  ///< of the fit under way
  std::string job_;                   ///< tells jobs apart
  std::string file_;                  ///< goodput.json of this run; empty: it writes nothing
  Seconds seconds_ = {};              ///< until `since_`
  Clock::time_point since_;
  double data_wait_ = 0;            ///< of the trainer, until `since_`
  double began_ = 0;                ///< of the call, in seconds since 1970
  bool is_starting_ = false;        ///< the first batch has not come yet
  bool is_known_ = false;           ///< whose job this is: a checkpoint has been loaded, or none is to be
  bool may_save_ = false;           ///< checkpointers run until the next hook
  mutable bool was_saved_ = false;  ///< a checkpoint has asked for the state since then
  int64_t steps_before_ = 0;
  Clock::time_point written_;
};

}  // namespace levin
