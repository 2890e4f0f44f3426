#include <levin/core/optim/reduce_on_plateau_scheduler.h>

#include <levin/core/base/recording.h>

#include <algorithm>
#include <limits>

namespace levin::optim {

void ReduceOnPlateauOptions::describe(Schema<ReduceOnPlateauOptions>& schema) {
  schema.field("mode", &ReduceOnPlateauOptions::mode, "direction of improvement; min: smaller is better; max: larger")
      .one_of({"min", "max"});
  schema.field("factor", &ReduceOnPlateauOptions::factor, "factor of each reduction").at_least(0).below(1);
  schema.field("patience", &ReduceOnPlateauOptions::patience, "checks without improvement before a reduction")
      .at_least(0);
  schema.field("threshold", &ReduceOnPlateauOptions::threshold, "smallest difference that counts as better")
      .at_least(0);
  schema.field("threshold_mode", &ReduceOnPlateauOptions::threshold_mode, "threshold relative to the best, or absolute")
      .one_of({"rel", "abs"});
  schema.field("cooldown", &ReduceOnPlateauOptions::cooldown, "checks after a reduction that do not count").at_least(0);
  schema.field("min_lr", &ReduceOnPlateauOptions::min_lr, "smallest learning rate").at_least(0);
  schema.field("eps", &ReduceOnPlateauOptions::eps, "smallest reduction of the learning rate").at_least(0);
}

ReduceOnPlateauScheduler::ReduceOnPlateauScheduler(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "reduce_on_plateau");
}

void ReduceOnPlateauScheduler::begin() {
  best_ = options_.mode == "min" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
  bad_steps_ = 0;
  cooldown_left_ = 0;
}

void ReduceOnPlateauScheduler::step() {
  fail("needs the value of a metric; set `monitor` in the scheduler's configuration to the name of a logged metric");
}

void ReduceOnPlateauScheduler::step(double metric) {
  refuse_while_recording("a step of a scheduler", "step it in on_train_batch_end or on_train_epoch_end");
  if (is_better(metric)) {
    best_ = metric;
    bad_steps_ = 0;
  } else {
    ++bad_steps_;
  }
  if (cooldown_left_ > 0) {
    --cooldown_left_;
    bad_steps_ = 0;
  }
  if (bad_steps_ > options_.patience) {
    reduce();
    cooldown_left_ = options_.cooldown;
    bad_steps_ = 0;
  }
  record_lrs();
}

bool ReduceOnPlateauScheduler::is_better(double metric) const {
  const bool relative = options_.threshold_mode == "rel";
  if (options_.mode == "min")
    return metric < (relative ? best_ * (1.0 - options_.threshold) : best_ - options_.threshold);
  return metric > (relative ? best_ * (options_.threshold + 1.0) : best_ + options_.threshold);
}

void ReduceOnPlateauScheduler::reduce() {
  for (size_t group = 0; group < group_count(); ++group) {
    const double before = group_lr(group);
    const double after = std::max(before * options_.factor, options_.min_lr);
    if (before - after > options_.eps) set_group_lr(group, after);
  }
}

State ReduceOnPlateauScheduler::state_dict() const {
  State state = learning_rates_state();
  state["best"] = best_;
  state["bad_steps"] = bad_steps_;
  state["cooldown_left"] = cooldown_left_;
  return state;
}

void ReduceOnPlateauScheduler::load_state_dict(const State& state) {
  load_learning_rates(state);
  best_ = state.at("best").as_double();
  bad_steps_ = state.at("bad_steps").as_int();
  cooldown_left_ = state.at("cooldown_left").as_int();
}

}  // namespace levin::optim
