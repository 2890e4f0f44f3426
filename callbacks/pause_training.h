#pragma once

#include <levin/core/base/events.h>
#include <levin/core/base/schema.h>
#include <levin/core/base/state.h>
#include <levin/core/interfaces/callback.h>

#include <cstdint>
#include <string>

namespace levin {

struct PauseTrainingOptions {
  int64_t after_epochs = 1;  ///< epochs after which training ends
  static void describe(Schema<PauseTrainingOptions>& schema);
};

/// Ends training after so many epochs of the `max_epochs` for which schedulers go on planning: a run that is resumed
/// without it, or with a later end, is equal to the bit to one that never paused.
class PauseTraining final : public Callback {
 public:
  using Options = PauseTrainingOptions;

  explicit PauseTraining(const Options& options = {}) : options_(options) {}

  /// One for all ends, so that a later one finds what an earlier one saved.
  std::string state_key() const override { return "pause_training"; }

  void setup(Trainer& trainer, Module& module, Stage stage) override;
  void on_train_start(Trainer& trainer, Module& module) override;
  void on_train_epoch_end(Trainer& trainer, Module& module) override;

  State state_dict() const override;
  void load_state_dict(const State& state) override;

 private:
  void check(Trainer& trainer);

  const Options options_;
  int64_t completed_epochs_ = 0;
};

}  // namespace levin
