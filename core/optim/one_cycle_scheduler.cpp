#include <levin/core/optim/one_cycle_scheduler.h>

#include <levin/core/base/error.h>
#include <levin/core/optim/group_options.h>

#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <numbers>

namespace levin::optim {

void OneCycleOptions::describe(Schema<OneCycleOptions>& schema) {
  schema.field("max_lr", &OneCycleOptions::max_lr, "peak; null: each group's own learning rate").above(0);
  schema.field("total_steps", &OneCycleOptions::total_steps, "length of the cycle; null: the whole run").at_least(1);
  schema.field("pct_start", &OneCycleOptions::pct_start, "share of the steps in which the learning rate rises")
      .at_least(0)
      .at_most(1);
  schema.field("anneal_strategy", &OneCycleOptions::anneal_strategy, "shape of rise and fall")
      .one_of({"cos", "linear"});
  schema.field("cycle_momentum", &OneCycleOptions::cycle_momentum, "momentum falls while the learning rate rises");
  schema.field("base_momentum", &OneCycleOptions::base_momentum, "momentum at the peak").at_least(0).below(1);
  schema.field("max_momentum", &OneCycleOptions::max_momentum, "momentum at both ends").at_least(0).below(1);
  schema.field("div_factor", &OneCycleOptions::div_factor, "peak / first learning rate").above(0);
  schema.field("final_div_factor", &OneCycleOptions::final_div_factor, "first / last learning rate").above(0);
  schema.field("three_phase", &OneCycleOptions::three_phase,
               "third phase: fall as long as the rise, then to the last value");
}

OneCycleScheduler::OneCycleScheduler(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "one_cycle");
}

void OneCycleScheduler::bind(torch::optim::Optimizer& optimizer, const std::vector<double>& initial_lrs) {
  total_steps_ = resolved_length(options_.total_steps, "total_steps");
  Scheduler::bind(optimizer, initial_lrs);

  const double total = static_cast<double>(total_steps_);
  const double first = options_.div_factor;
  const double last = options_.div_factor * options_.final_div_factor;
  const double low = options_.base_momentum;
  const double high = options_.max_momentum;
  phases_ = {{options_.pct_start * total - 1, {first, 1}, {high, low}}};
  if (options_.three_phase) {
    phases_.push_back({2 * options_.pct_start * total - 2, {1, first}, {low, high}});
    phases_.push_back({total - 1, {first, last}, {high, high}});
  } else {
    phases_.push_back({total - 1, {1, last}, {low, high}});
  }
}

void OneCycleScheduler::on_count_changed() {
  if (steps_taken() > total_steps_)
    fail(fmt::format(
        "was stepped beyond its end; got step {}; valid: up to total_steps, {}; hint: set total_steps to the "
        "number of scheduler steps of the whole run, or leave it out",
        steps_taken(), total_steps_));
  find_phase();
}

void OneCycleScheduler::find_phase() {
  const double step = static_cast<double>(steps_taken());
  double start = 0;
  for (const auto& phase : phases_) {
    if (step <= phase.end_step || &phase == &phases_.back()) {
      phase_ = &phase;
      // A phase without steps (a cycle of one step) is over at once.
      share_ = phase.end_step == start ? 1 : (step - start) / (phase.end_step - start);
      return;
    }
    start = phase.end_step;
  }
}

double OneCycleScheduler::interpolated(double start, double end, double share) const {
  if (options_.anneal_strategy == "linear") return (end - start) * share + start;
  return end + (start - end) / 2.0 * (std::cos(std::numbers::pi * share) + 1);
}

double OneCycleScheduler::next_lr(size_t group, double /*current*/) const {
  const double peak = options_.max_lr.value_or(base_lr(group));
  return interpolated(peak / phase_->lr_divisors[0], peak / phase_->lr_divisors[1], share_);
}

void OneCycleScheduler::on_lrs_set() {
  if (!options_.cycle_momentum) return;
  const double momentum = interpolated(phase_->momenta[0], phase_->momenta[1], share_);
  for (auto& group : optimizer().param_groups())
    if (!set_momentum(group.options(), momentum))
      fail(
          "cannot cycle the momentum of this optimizer, which has neither a momentum nor betas; set cycle_momentum to "
          "false");
}

}  // namespace levin::optim
