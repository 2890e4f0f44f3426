#pragma once

#include <levin/core/base/loss_weight.h>
#include <levin/core/base/schema.h>
#include <levin/core/interfaces/callback.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// Options of SpikeDetection, explained in describe().
struct SpikeDetectionOptions {
  int64_t window = 10;
  int64_t warmup = 10;
  std::optional<double> atol = {};
  std::optional<double> rtol = 2;
  std::optional<double> z_score = {};
  std::string mode = "min";
  bool finite_only = true;
  std::string action = "warn";
  std::string file = "spikes.json";

  static void describe(Schema<SpikeDetectionOptions>& schema);
};

/// Finds batches whose loss is far off the running mean of those before them: a spike is worse than the loss before it
/// and as far from the mean as each of `atol`, `rtol` and `z_score` that is set asks for. Each is written to the run's
/// folder with its epoch and the batches to leave out: its own, and the one before it, whose step may have caused it.
/// The rule is that of SpikeDetection of Lightning Fabric; spikes do not enter the mean.
///
/// The loss is the mean over all ranks. Losses stay on their device until a logging boundary (256 of them at most), so
/// that a spike is acted on there. What was seen is part of every checkpoint.
class SpikeDetection final : public Callback {
 public:
  using Options = SpikeDetectionOptions;

  explicit SpikeDetection(const Options& options = {});

  struct Spike {
    int64_t epoch = 0;
    int64_t batch_idx = 0;
    int64_t step = 0;  ///< the optimizer step that the batch belongs to, from 1
    double loss = 0;
    double mean = 0;  ///< running mean, of the window before it
  };
  /// Spikes of the run so far, in order.
  const std::vector<Spike>& spikes() const { return spikes_; }

  void setup(Trainer& trainer, Module& module, Stage stage) override;
  void on_train_batch_start(Trainer& trainer, Module& module, const Batch& batch, int64_t batch_idx) override;
  void on_train_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                          int64_t batch_idx) override;
  void on_train_end(Trainer& trainer, Module& module) override;
  void on_save_checkpoint(Trainer& trainer, Module& module, State& checkpoint) override;

  State state_dict() const override;
  void load_state_dict(const State& state) override;

 private:
  /// A batch whose loss has not been read.
  struct Pending {
    Spike batch;
    at::Tensor loss;    ///< one element; undefined where this rank has none
    LossWeight weight;  ///< of that loss
  };

  /// Reads what is pending, on all ranks together.
  void look(Trainer& trainer);
  void observe(Spike batch);
  bool is_spike(double loss) const;
  double mean() const;
  /// Does what the options say about spikes that were not reported.
  void report(Trainer& trainer);
  void write(Trainer& trainer) const;

  const Options options_;
  int64_t steps_before_ = 0;  ///< the batch under way
  std::vector<Pending> pending_;
  std::deque<double> window_;
  double last_ = 0;
  int64_t seen_ = 0;
  std::vector<Spike> spikes_;
  size_t reported_ = 0;
};

}  // namespace levin
