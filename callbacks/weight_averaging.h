#pragma once

#include <levin/callbacks/averaged_weights.h>
#include <levin/callbacks/averaging_callbacks.h>
#include <levin/core/base/schema.h>
#include <levin/core/interfaces/averages_weights.h>
#include <levin/core/interfaces/callback.h>

#include <cstdint>

namespace levin {

/// Options of WeightAveraging, explained in describe().
struct WeightAveragingOptions {
  double decay = 0.999;
  int64_t update_every_n_steps = 1;
  int64_t update_starting_at_step = 0;
  int64_t update_starting_at_epoch = 0;
  bool use_buffers = false;
  bool offload = false;

  static void describe(Schema<WeightAveragingOptions>& schema);
};

/// Keeps an exponential moving average (EMA) of the weights (Polyak and Juditsky, 1992): average ← decay · average +
/// (1 − decay) · weights. Validation, every checkpoint's model and the module after fit have the average; training goes
/// on with its own weights, also after a resume. With `use_buffers` that holds for buffers of floating-point type too
/// (of several ranks' those of rank 0); else they are the module's own throughout. A derived class that
/// overrides share() keeps another average.
class WeightAveraging : public Callback, public AveragesWeights {
 public:
  using Options = WeightAveragingOptions;

  explicit WeightAveraging(const Options& options = {});

  void setup(Trainer& trainer, Module& module, Stage stage) override;
  void on_fit_start(Trainer& trainer, Module& module) override;
  void on_train_batch_start(Trainer& trainer, Module& module, const Batch& batch, int64_t batch_idx) override;
  void on_train_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                          int64_t batch_idx) override;
  void on_validation_start(Trainer& trainer, Module& module) override;
  void on_validation_end(Trainer& trainer, Module& module) override;
  void on_train_end(Trainer& trainer, Module& module) override;
  void on_exception(Trainer& trainer, Module& module, const std::exception_ptr& error) override;
  void on_save_checkpoint(Trainer& trainer, Module& module, State& checkpoint) override;

  bool take_average(Module& module, const State& tensors, int64_t updates) override;

  State state_dict() const override;
  void load_state_dict(const State& state) override;

 protected:
  /// Share of the difference by which an update moves the average towards the weights; 1 − decay here. `update` counts
  /// from 1, resumed runs included; update 0 makes the average a copy of them. 1.0 / (update + 1) gives their mean.
  virtual double share(int64_t update) const;

 private:
  const Options options_;
  AveragedWeights average_;
  int64_t seen_steps_ = 0;   ///< optimizer steps that were looked at
  int64_t updates_ = 0;      ///< of the average
  bool validating_ = false;  ///< a validation with the average is under way, or was cut off
};

}  // namespace levin
