#pragma once

#include <levin/callbacks/live_lines.h>
#include <levin/callbacks/progress_line.h>
#include <levin/core/base/schema.h>
#include <levin/core/interfaces/callback.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace levin::log {
class SinkScope;
}

namespace levin {

/// Options of ProgressBar, explained in describe().
struct ProgressBarOptions {
  double refresh_rate = 10;
  double plain_interval = 60;
  bool leave = true;

  static void describe(Schema<ProgressBarOptions>& schema);
};

/// Shows how far training, validation, testing or prediction is, on rank 0, on standard error: standard output stays
/// free for the program's results.
///
/// On a terminal a line is redrawn in place, with a second one beneath while validation runs; log messages appear
/// above, or go to the program's own sink. Elsewhere (a file, a pipe) it prints plain lines: one an epoch, and in long
/// epochs one now and then. Between redraws a batch costs a look at the clock; values that are still being computed on
/// a device are not waited for.
class ProgressBar final : public Callback {
 public:
  using Options = ProgressBarOptions;

  explicit ProgressBar(const Options& options = {});
  /// Draws on a terminal of one's own: `write` gets the text, `columns` tells the width.
  ProgressBar(const Options& options, LiveLines::Writer write, LiveLines::Width columns);
  ~ProgressBar() override;

  /// The line of an epoch shows the metrics of that epoch.
  bool runs_after_metrics() const override { return true; }

  void on_sanity_check_start(Trainer& trainer, Module& module) override;
  void on_sanity_check_end(Trainer& trainer, Module& module) override;
  void on_train_start(Trainer& trainer, Module& module) override;
  void on_train_epoch_start(Trainer& trainer, Module& module) override;
  void on_train_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                          int64_t batch_idx) override;
  void on_train_epoch_end(Trainer& trainer, Module& module) override;
  void on_train_end(Trainer& trainer, Module& module) override;
  void on_validation_start(Trainer& trainer, Module& module) override;
  void on_validation_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                               int64_t batch_idx, int64_t dataloader_idx) override;
  void on_validation_end(Trainer& trainer, Module& module) override;
  void on_test_start(Trainer& trainer, Module& module) override;
  void on_test_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                         int64_t batch_idx, int64_t dataloader_idx) override;
  void on_test_end(Trainer& trainer, Module& module) override;
  void on_predict_start(Trainer& trainer, Module& module) override;
  void on_predict_batch_end(Trainer& trainer, Module& module, const Batch& prediction, const Batch& batch,
                            int64_t batch_idx, int64_t dataloader_idx) override;
  void on_predict_end(Trainer& trainer, Module& module) override;
  void on_exception(Trainer& trainer, Module& module, const std::exception_ptr& error) override;
  void teardown(Trainer& trainer, Module& module, Stage stage) override;

 private:
  using Clock = std::chrono::steady_clock;

  /// One bar: what it shows, and the clock behind it.
  struct Bar {
    Bar() {}  // NOLINT(modernize-use-equals-default): clang needs it for std::optional<Bar> within the class

    Progress progress;
    Clock::time_point started;
    bool counted = false;  ///< a batch was counted since it began

    void begin(std::string description, int64_t total);
    void count(int64_t done);
    void update_time(Clock::time_point now);
    bool complete() const { return progress.done == progress.total; }
  };

  void open(const Trainer& trainer);
  void close();
  void begin_main(const Trainer& trainer, std::string description, int64_t total);
  void begin_evaluation(const Trainer& trainer, const std::string& description);
  void begin_epoch(const Trainer& trainer);
  void count_evaluation(const Trainer& trainer, const char* description, int64_t batch_idx, int64_t loader);
  void end_evaluation(const Trainer& trainer);
  void refresh(const Trainer& trainer, const Bar& counted);
  void show(const Trainer& trainer);
  void schedule_refresh(Clock::time_point begun);
  void complete_main(const Trainer& trainer);
  void finish_main();

  const Options options_;
  LiveLines lines_;
  const bool own_terminal_;                    ///< given by the caller, not standard error
  bool terminal_ = false;                      ///< redraw in place
  bool blocks_ = false;                        ///< draw with block characters
  bool open_ = false;                          ///< bars are shown
  std::unique_ptr<log::SinkScope> log_scope_;  ///< messages come here while they are, on a terminal
  std::optional<Bar> main_;                    ///< the training epoch, or the evaluation that was asked for
  std::optional<Bar> nested_;                  ///< a validation within fit
  Clock::time_point nested_since_;
  Clock::time_point next_refresh_;
};

}  // namespace levin
