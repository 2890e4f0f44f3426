#pragma once

#include <levin/callbacks/averaged_weights.h>
#include <levin/callbacks/averaging_callbacks.h>
#include <levin/core/base/schema.h>
#include <levin/core/interfaces/averages_weights.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/optim/swa_scheduler.h>

#include <cstdint>
#include <string>

namespace levin {

/// Options of StochasticWeightAveraging, explained in describe().
struct StochasticWeightAveragingOptions {
  optim::GroupRates swa_lrs = {};
  double swa_epoch_start = 0.8;
  int64_t annealing_epochs = 10;
  std::string annealing_strategy = "cos";

  static void describe(Schema<StochasticWeightAveragingOptions>& schema);
};

/// Stochastic weight averaging (Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization",
/// 2018): from an epoch on learning rates go over to constant ones, and the weights that each epoch ends with are
/// averaged. After the last epoch the module gets the average, and one more pass over the training data, without
/// training, makes the running statistics of its BatchNorm layers anew. For automatic optimization with one optimizer.
///
/// Checkpoints inside of training have the training weights as their model and the average beside it; once training has
/// ended it is the other way round, so that a longer run can resume from there.
class StochasticWeightAveraging final : public Callback, public AveragesWeights {
 public:
  using Options = StochasticWeightAveragingOptions;

  explicit StochasticWeightAveraging(const Options& options);

  void setup(Trainer& trainer, Module& module, Stage stage) override;
  void on_fit_start(Trainer& trainer, Module& module) override;
  void on_train_epoch_start(Trainer& trainer, Module& module) override;
  void on_train_epoch_end(Trainer& trainer, Module& module) override;
  void on_train_end(Trainer& trainer, Module& module) override;

  State state_dict() const override;
  void load_state_dict(const State& state) override;

  /// Epochs in the average.
  int64_t averaged_epochs() const { return averaged_epochs_; }

 private:
  int64_t first_epoch(const Trainer& trainer) const;
  void begin(Trainer& trainer);
  void finish(Trainer& trainer, Module& module);

  const Options options_;
  AveragedWeights average_;
  int64_t first_epoch_ = 0;      ///< the first one that is averaged
  bool begun_ = false;           ///< learning rates are those of the averaged epochs
  int64_t averaged_epochs_ = 0;  ///< so far
  State training_buffers_;       ///< while the average is in the module: the buffers that training goes on with
};

}  // namespace levin
