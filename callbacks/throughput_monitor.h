#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/nn/flop_counter.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// Options of ThroughputMonitor, explained in describe().
struct ThroughputMonitorOptions {
  int64_t window = 1;
  int64_t warmup_steps = 5;
  int64_t warmup_epochs = 1;
  std::optional<double> one_device_epoch_seconds = {};
  std::optional<std::string> tokens = {};
  bool flops = true;
  std::optional<double> peak_tflops = {};
  /// For code: tokens (or whatever is counted) in a batch; in place of `tokens`
  std::function<int64_t(const Batch&)> count_tokens = {};

  static void describe(Schema<ThroughputMonitorOptions>& schema);
};

/// Logs how fast training is, at logging boundaries: "throughput/samples_per_second", "throughput/steps_per_second",
/// "throughput/tokens_per_second", "throughput/padding_percent" (of batches with "positions" [N, T], which are -1 where
/// there is padding), "throughput/model_tflops_per_second", "throughput/mfu_percent" (model FLOPs as a
/// share of the devices' peak) and "throughput/data_wait_percent" (the share of the time in which the loop waited for
/// training batches). All ranks count together.
///
/// At the end of an epoch it logs what the whole of it took: "throughput/epoch_seconds" (validation left out),
/// "throughput/epoch_samples", "throughput/epoch_samples_per_second", "throughput/devices" and, against one device,
/// "throughput/speedup". An epoch that a fit goes on with or ends in has none of these.
///
/// A GPU works behind the host, so the clock is read once the device has caught up: at logging boundaries, where the
/// loop waits for the logged values anyway, and around validation. Nothing waits in other steps. Operations are counted
/// in the first batch of each shape in an epoch, which stands for all others of that shape. After 64 shapes a new one
/// counts for as many operations an element of the batch as those have had on average.
class ThroughputMonitor final : public Callback {
 public:
  using Options = ThroughputMonitorOptions;

  explicit ThroughputMonitor(const Options& options = {});

  void on_fit_start(Trainer& trainer, Module& module) override;
  void on_train_epoch_start(Trainer& trainer, Module& module) override;
  void on_train_batch_start(Trainer& trainer, Module& module, const Batch& batch, int64_t batch_idx) override;
  void on_train_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                          int64_t batch_idx) override;
  void on_train_epoch_end(Trainer& trainer, Module& module) override;
  void on_validation_start(Trainer& trainer, Module& module) override;
  void on_validation_end(Trainer& trainer, Module& module) override;
  void on_exception(Trainer& trainer, Module& module, const std::exception_ptr& error) override;

 private:
  using Clock = std::chrono::steady_clock;
  using Shape = std::vector<int64_t>;

  /// Cost of the batches of a shape.
  struct Cost {
    int64_t flops = 0;         ///< of one; 0: not known
    int64_t elements = 0;      ///< of one
    bool is_of_epoch = false;  ///< counted in this epoch
  };
  /// Sums over the batches of this rank since the warm-up.
  struct Totals {
    double seconds = 0;
    double data_wait = 0;
    int64_t steps = 0;
    int64_t samples = 0;
    int64_t tokens = 0;
    int64_t places = 0;   ///< of rows that say where their padding is
    int64_t padding = 0;  ///< of these
    double flops = 0;
  };

  void find_peak(Trainer& trainer, Module& module);
  void count_tokens_in(const Batch& batch, bool counts);
  void read_counted();
  void begin_count(const Batch& batch);
  void finish_count();
  double flops_in(const Batch& batch) const;
  void start(Trainer& trainer);
  void log(Trainer& trainer);
  void log_epoch(Trainer& trainer);

  const Options options_;
  std::optional<double> peak_;  ///< operations a second of all devices together
  int64_t epochs_ = 0;          ///< that began in this fit
  std::optional<Clock::time_point> epoch_started_;
  Clock::duration epoch_excluded_{0};
  int64_t epoch_samples_ = 0;  ///< of this rank
  int64_t first_step_ = 0;
  int64_t steps_before_ = 0;  ///< the batch under way
  std::optional<Clock::time_point> started_;
  std::optional<Clock::time_point> validation_began_;
  Clock::duration excluded_{0};
  double data_wait_before_ = 0;
  Totals totals_;
  at::Tensor counted_;             ///< tokens that were counted since the last boundary, where the batches are
  at::Tensor padded_;              ///< places of padding, likewise
  std::deque<Totals> boundaries_;  ///< the oldest is where the window begins
  Shape shape_;                    ///< of the batch under way
  std::map<Shape, Cost> costs_;
  bool too_many_shapes_ = false;  ///< more than it remembers
  std::optional<FlopCounter> counter_;
};

}  // namespace levin
