#include <levin/callbacks/pause_training.h>

#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

namespace levin {

void PauseTrainingOptions::describe(Schema<PauseTrainingOptions>& schema) {
  schema.field("after_epochs", &PauseTrainingOptions::after_epochs, "epochs after which training ends").at_least(1);
}

void PauseTraining::setup(Trainer&, Module&, Stage stage) {
  if (stage == Stage::kFit) completed_epochs_ = 0;
}

/// A run that ended after the checkpoint of its last epoch, and before it said so, is at the end when it is resumed.
void PauseTraining::on_train_start(Trainer& trainer, Module&) { check(trainer); }

void PauseTraining::on_train_epoch_end(Trainer& trainer, Module&) {
  if (!trainer.epoch_complete()) return;
  completed_epochs_ = trainer.current_epoch() + 1;
  check(trainer);
}

void PauseTraining::check(Trainer& trainer) {
  if (completed_epochs_ < options_.after_epochs || trainer.stop_requested()) return;
  trainer.request_pause(fmt::format("pause_training: {} epochs are done", completed_epochs_));
}

State PauseTraining::state_dict() const {
  State state = State::map();
  state["completed_epochs"] = completed_epochs_;
  return state;
}

void PauseTraining::load_state_dict(const State& state) { completed_epochs_ = state.at("completed_epochs").as_int(); }

}  // namespace levin
