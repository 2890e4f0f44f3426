#pragma once

#include <levin/core/base/events.h>
#include <levin/core/base/schema.h>
#include <levin/core/interfaces/callback.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace levin {

/// Options of Timer, explained in describe().
struct TimerOptions {
  /// Training ends after this time, "DD:HH:MM:SS"; unset: time is only measured
  std::optional<std::string> duration = {};
  std::string interval = "step";

  static void describe(Schema<TimerOptions>& schema);
};

/// Measures the time spent in training, validation, testing and prediction, and ends training after a given time.
/// Training time includes the validations within it; after a resume it goes on from what was saved.
class Timer final : public Callback {
 public:
  using Options = TimerOptions;

  explicit Timer(const Options& options = {});

  std::string state_key() const override;
  /// Seconds spent in a stage so far.
  double time_elapsed(RunningStage stage = RunningStage::kTrain) const;
  /// Seconds of training that are left; nothing without a duration.
  std::optional<double> time_remaining() const;

  void setup(Trainer& trainer, Module& module, Stage stage) override;
  void on_train_start(Trainer& trainer, Module& module) override;
  void on_train_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                          int64_t batch_idx) override;
  void on_train_epoch_end(Trainer& trainer, Module& module) override;
  void on_train_end(Trainer& trainer, Module& module) override;
  void on_validation_start(Trainer& trainer, Module& module) override;
  void on_validation_end(Trainer& trainer, Module& module) override;
  void on_test_start(Trainer& trainer, Module& module) override;
  void on_test_end(Trainer& trainer, Module& module) override;
  void on_predict_start(Trainer& trainer, Module& module) override;
  void on_predict_end(Trainer& trainer, Module& module) override;
  void on_exception(Trainer& trainer, Module& module, const std::exception_ptr& error) override;

  State state_dict() const override;
  void load_state_dict(const State& state) override;

 private:
  using Clock = std::chrono::steady_clock;

  struct Stopwatch {
    double seconds = 0;                        ///< of what has ended
    std::optional<Clock::time_point> started;  ///< of what is under way
    double elapsed() const;
    void start();
    void stop();
  };

  static constexpr size_t kStages = static_cast<size_t>(RunningStage::kPredict) + 1;

  Stopwatch& watch(RunningStage stage) { return watches_[static_cast<size_t>(stage)]; }
  const Stopwatch& watch(RunningStage stage) const { return watches_[static_cast<size_t>(stage)]; }
  void check(Trainer& trainer);

  const Options options_;
  std::optional<std::chrono::seconds> duration_;
  std::array<Stopwatch, kStages> watches_;
};

}  // namespace levin
