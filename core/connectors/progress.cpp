#include <levin/core/connectors/progress.h>

#include <utility>

namespace levin {

void FitProgress::abandon_window() {
  window_index = 0;
  window_weight = 0;
  window_has_gradients = false;
}

bool FitProgress::start_next_epoch() {
  ++epoch;
  batch = 0;
  moment_before_epoch = moment();
  ended_inside = false;
  epoch_samples = 0;
  const bool began_elsewhere = std::exchange(first_example, 0) > 0;
  epoch_started = false;
  last_batch_done = false;
  cut_short = false;
  abandon_window();
  phase = FitPhase::kBatches;
  return began_elsewhere;
}

void FitProgress::resume_with_batches_of(int64_t examples) {
  batch = epoch_samples / examples;
  first_example = epoch_samples % examples;
  has_other_batches = true;
}

State FitProgress::state_dict() const {
  State state = State::map();
  state["epoch"] = epoch;
  state["global_step"] = global_step;
  state["batch"] = batch;
  state["total_batches"] = total_batches;
  state["empty_epochs"] = empty_epochs;
  state["batches_before_epoch"] = moment_before_epoch;
  state["ended_inside"] = ended_inside;
  state["samples"] = samples;
  state["epoch_samples"] = epoch_samples;
  state["first_example"] = first_example;
  state["global_batch_size"] = global_batch_size;
  state["order"] = order;
  state["step_offset"] = step_offset;
  state["epoch_started"] = epoch_started;
  state["last_batch_done"] = last_batch_done;
  state["cut_short"] = cut_short;
  state["window_index"] = window_index;
  state["window_size"] = window_size;
  state["window_examples"] = window_examples;
  state["window_usual_examples"] = window_usual_examples;
  state["window_has_gradients"] = window_has_gradients;
  state["scheduler_steps_held_back"] = scheduler_steps_held_back;
  state["phase"] = static_cast<int64_t>(phase);
  state["validation_started"] = validation.started;
  state["validation_loader"] = validation.loader;
  state["validation_batch"] = validation.batch;
  state["validated"] = validated;
  state["elapsed"] = elapsed;
  state["seconds_since_validation"] = seconds_since_validation;
  state["batches_since_validation"] = batches_since_validation;
  return state;
}

void FitProgress::load_state_dict(const State& state) {
  epoch = state.at("epoch").as_int();
  global_step = state.at("global_step").as_int();
  batch = state.at("batch").as_int();
  total_batches = state.at("total_batches").as_int();
  const State* empty = state.find("empty_epochs");
  empty_epochs = empty == nullptr ? 0 : empty->as_int();
  moment_before_epoch = state.at("batches_before_epoch").as_int();
  ended_inside = state.at("ended_inside").as_bool();
  samples = state.at("samples").as_int();
  epoch_samples = state.at("epoch_samples").as_int();
  first_example = state.at("first_example").as_int();
  global_batch_size = state.at("global_batch_size").as_int();
  const State* saved_order = state.find("order");
  order = saved_order != nullptr ? saved_order->as_string() : "";
  const State* offset = state.find("step_offset");
  step_offset = offset == nullptr ? 0 : offset->as_int();
  has_other_batches = false;
  epoch_started = state.at("epoch_started").as_bool();
  last_batch_done = state.at("last_batch_done").as_bool();
  const State* cut = state.find("cut_short");
  cut_short = cut != nullptr && cut->as_bool();
  window_index = state.at("window_index").as_int();
  window_size = state.at("window_size").as_int();
  const State* examples = state.find("window_examples");
  window_examples = examples == nullptr ? 0 : examples->as_int();
  const State* usual = state.find("window_usual_examples");
  window_usual_examples = usual == nullptr ? 1 : usual->as_int();
  window_has_gradients = state.at("window_has_gradients").as_bool();
  scheduler_steps_held_back = state.at("scheduler_steps_held_back").as_int();
  phase = static_cast<FitPhase>(state.at("phase").as_int());
  validation.started = state.at("validation_started").as_bool();
  validation.loader = state.at("validation_loader").as_int();
  validation.batch = state.at("validation_batch").as_int();
  validated = state.at("validated").as_bool();
  elapsed = state.at("elapsed").as_double();
  seconds_since_validation = state.at("seconds_since_validation").as_double();
  batches_since_validation = state.at("batches_since_validation").as_int();
}

}  // namespace levin
