#include <levin/callbacks/weight_averaging.h>

#include <levin/core/base/error.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

namespace levin {

void WeightAveragingOptions::describe(Schema<WeightAveragingOptions>& schema) {
  using O = WeightAveragingOptions;
  schema.field("decay", &O::decay, "decay of the average").at_least(0).at_most(1);
  schema.field("update_every_n_steps", &O::update_every_n_steps, "optimizer steps between updates").at_least(1);
  schema
      .field("update_starting_at_step", &O::update_starting_at_step,
             "first optimizer step (from 0) at which weights are averaged")
      .at_least(0);
  schema
      .field("update_starting_at_epoch", &O::update_starting_at_epoch,
             "first epoch (from 0) in which weights are averaged")
      .at_least(0);
  schema.field("use_buffers", &O::use_buffers, "average floating-point buffers too, such as running statistics");
  schema.field("offload", &O::offload, "keep the average in the host's memory; each update waits for the device");
}

WeightAveraging::WeightAveraging(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "weight_averaging");
}

void WeightAveraging::setup(Trainer& trainer, Module&, Stage stage) {
  if (stage != Stage::kFit) return;
  require_one_average(trainer);
  average_.reset();
  updates_ = 0;
  validating_ = false;
}

void WeightAveraging::on_fit_start(Trainer& trainer, Module& module) {
  if (options_.use_buffers && !trainer.strategy().divided_model().outputs_everywhere())
    throw ConfigError(fmt::format(
        "weight_averaging.use_buffers does not work with strategy {}, whose ranks have different buffers; valid: false",
        trainer.strategy().name()));
  average_.bind(module, trainer.strategy(), {.use_buffers = options_.use_buffers, .offload = options_.offload});
  seen_steps_ = trainer.global_step();
  // A checkpoint's model has the average. A validation that was under way goes on with it.
  if (!validating_) average_.take_out_of_module();
}

void WeightAveraging::on_train_batch_start(Trainer&, Module&, const Batch&, int64_t) {
  // Where a validation that was under way is not resumed, because there is none any more.
  validating_ = false;
  average_.take_out_of_module();
}

void WeightAveraging::on_train_batch_end(Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
  // In manual optimization a batch may take several steps. The step of number 0 is the first that is due.
  const auto due_before = [this](int64_t steps) {
    return (steps + options_.update_every_n_steps - 1) / options_.update_every_n_steps;
  };
  const bool due = due_before(trainer.global_step()) > due_before(seen_steps_);
  seen_steps_ = trainer.global_step();
  if (!due || seen_steps_ - 1 < options_.update_starting_at_step ||
      trainer.current_epoch() < options_.update_starting_at_epoch)
    return;
  average_.update(share(updates_++));
}

double WeightAveraging::share(int64_t) const { return 1 - options_.decay; }

void WeightAveraging::on_validation_start(Trainer& trainer, Module& module) {
  if (trainer.stage() != Stage::kFit || trainer.sanity_checking()) return;
  validating_ = true;
  average_.put_into_module();
  if (options_.use_buffers) trainer.strategy().prepare_evaluation(module);  // each rank has averaged its own
}

void WeightAveraging::on_validation_end(Trainer& trainer, Module&) {
  if (trainer.stage() != Stage::kFit || trainer.sanity_checking()) return;
  validating_ = false;
  average_.take_out_of_module();
}

void WeightAveraging::on_train_end(Trainer&, Module&) { average_.put_into_module(); }

void WeightAveraging::on_exception(Trainer& trainer, Module&, const std::exception_ptr&) {
  if (trainer.stage() == Stage::kFit && validating_) average_.take_out_of_module();
}

void WeightAveraging::on_save_checkpoint(Trainer&, Module&, State& checkpoint) {
  if (average_.empty() || average_.in_module()) return;
  auto& model = checkpoint["model"].as_map();
  const State averages = average_.beside();
  for (const auto& [name, fields] : averages.at("parameters").as_map()) {
    const auto found = model.find(name);
    LEVIN_CHECK(found != model.end(), "a checkpoint's model has every parameter");
    // The model's own placement is that of a whole tensor where ranks divide the optimizer's state alone.
    const TensorLeaf& average = fields.at("value").as_leaf();
    const bool is_part = average.placement.kind == Placement::Kind::kSharded;
    found->second = TensorLeaf{average.value, is_part ? average.placement : found->second.as_leaf().placement};
  }
}

bool WeightAveraging::take_average(Module& module, const State& tensors, int64_t updates) {
  State average = State::map();
  State& parameters = average["parameters"] = State::map();
  const auto add = [&](const auto& named) {
    for (const auto& entry : named) {
      const State* const found = tensors.find(entry.key());
      if (found != nullptr && entry.value().is_floating_point()) parameters[entry.key()]["value"] = *found;
    }
  };
  add(module.named_parameters());
  if (options_.use_buffers) add(module.named_buffers());
  average_.load(average, /*in_module=*/false);
  updates_ = updates;
  return true;
}

State WeightAveraging::state_dict() const {
  if (average_.empty()) return {};
  State state = State::map();
  state["training_weights"] = average_.in_module() ? average_.beside() : average_.of_module();
  state["validating"] = validating_;
  state["updates"] = updates_;
  return state;
}

void WeightAveraging::load_state_dict(const State& state) {
  average_.load(state.at("training_weights"), /*in_module=*/true);
  validating_ = state.at("validating").as_bool();
  if (const State* updates = state.find("updates")) updates_ = updates->as_int();
}

}  // namespace levin
