#include <levin/core/optim/long_schedulers.h>

#include <levin/core/base/error.h>
#include <levin/core/optim/group_options.h>

#include <torch/optim/optimizer.h>

#include <cmath>
#include <numbers>

namespace levin::optim {
namespace {

constexpr int64_t kLongest = 1'000'000'000;

}  // namespace

void PolynomialOptions::describe(Schema<PolynomialOptions>& schema) {
  schema.field("total_iters", &PolynomialOptions::total_iters, "steps down to 0; null: the whole run")
      .at_least(1)
      .at_most(kLongest);
  schema.field("power", &PolynomialOptions::power, "power of the share of steps that are left").above(0);
}

PolynomialScheduler::PolynomialScheduler(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "polynomial");
}

void PolynomialScheduler::bind(torch::optim::Optimizer& optimizer, const std::vector<double>& initial_lrs) {
  total_iters_ = resolved_length(options_.total_iters, "total_iters");
  Scheduler::bind(optimizer, initial_lrs);
}

double PolynomialScheduler::next_lr(size_t /*group*/, double current) const {
  if (steps_taken() > total_iters_) return current;
  const double total = static_cast<double>(total_iters_);
  const double steps = static_cast<double>(steps_taken());
  return current * std::pow((1 - steps / total) / (1 - (steps - 1) / total), options_.power);
}

void ConstantOptions::describe(Schema<ConstantOptions>& schema) {
  schema.field("factor", &ConstantOptions::factor, "part of the learning rate of the first steps").above(0).at_most(1);
  schema.field("total_iters", &ConstantOptions::total_iters, "steps that use this factor")
      .at_least(1)
      .at_most(kLongest);
}

ConstantScheduler::ConstantScheduler(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "constant");
}

double ConstantScheduler::first_lr(size_t /*group*/, double current) const { return current * options_.factor; }

double ConstantScheduler::next_lr(size_t /*group*/, double current) const {
  return steps_taken() == options_.total_iters ? current / options_.factor : current;
}

void InverseSquareRootOptions::describe(Schema<InverseSquareRootOptions>& schema) {
  schema.field("timescale", &InverseSquareRootOptions::timescale, "a third of the half-life (steps)")
      .at_least(1)
      .at_most(kLongest);
}

InverseSquareRootScheduler::InverseSquareRootScheduler(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "inverse_square_root");
}

double InverseSquareRootScheduler::next_lr(size_t group, double /*current*/) const {
  const double timescale = static_cast<double>(options_.timescale);
  return base_lr(group) * std::sqrt(timescale / (timescale + static_cast<double>(steps_taken())));
}

void StableDecayOptions::describe(Schema<StableDecayOptions>& schema) {
  schema.field("total_steps", &StableDecayOptions::total_steps, "length of the schedule; null: the whole run")
      .at_least(1)
      .at_most(kLongest);
  schema.field("decay_ratio", &StableDecayOptions::decay_ratio, "part of the steps in which the learning rate falls")
      .above(0)
      .at_most(1);
  schema.field("decay_type", &StableDecayOptions::decay_type, "shape of the fall; sqrt is 1 - sqrt(steps of it)")
      .one_of({"linear", "sqrt", "cosine"});
  schema.field("min_lr_factor", &StableDecayOptions::min_lr_factor, "part of the learning rate at the end")
      .at_least(0)
      .at_most(1);
}

StableDecayScheduler::StableDecayScheduler(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "warmup_stable_decay");
}

void StableDecayScheduler::bind(torch::optim::Optimizer& optimizer, const std::vector<double>& initial_lrs) {
  total_steps_ = resolved_length(options_.total_steps, "total_steps");
  decay_start_ = total_steps_ - std::llround(options_.decay_ratio * static_cast<double>(total_steps_));
  Scheduler::bind(optimizer, initial_lrs);
}

double StableDecayScheduler::next_lr(size_t group, double /*current*/) const {
  if (steps_taken() <= decay_start_) return base_lr(group);
  const double progress = steps_taken() >= total_steps_ ? 1
                                                        : static_cast<double>(steps_taken() - decay_start_) /
                                                              static_cast<double>(total_steps_ - decay_start_);
  double left = 1 - progress;
  if (options_.decay_type == "sqrt") left = 1 - std::sqrt(progress);
  if (options_.decay_type == "cosine") left = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return base_lr(group) * (options_.min_lr_factor + (1 - options_.min_lr_factor) * left);
}

void CyclicOptions::describe(Schema<CyclicOptions>& schema) {
  schema.field("base_lr", &CyclicOptions::base_lr, "lower bound").at_least(0);
  schema.field("max_lr", &CyclicOptions::max_lr, "upper bound; null: each group's own learning rate").above(0);
  schema.field("step_size_up", &CyclicOptions::step_size_up, "steps of a rise").at_least(1).at_most(kLongest);
  schema.field("step_size_down", &CyclicOptions::step_size_down, "steps of a fall; null: as many as of a rise")
      .at_least(1)
      .at_most(kLongest);
  schema
      .field("mode", &CyclicOptions::mode,
             "height of the cycles; triangular: constant; triangular2: halved each cycle; exp_range: gamma to the "
             "power of the steps")
      .one_of({"triangular", "triangular2", "exp_range"});
  schema.field("gamma", &CyclicOptions::gamma, "factor of exp_range").above(0);
  schema.field("cycle_momentum", &CyclicOptions::cycle_momentum, "momentum falls while the learning rate rises");
  schema.field("base_momentum", &CyclicOptions::base_momentum, "momentum at the upper bound").at_least(0).below(1);
  schema.field("max_momentum", &CyclicOptions::max_momentum, "momentum at the lower bound").at_least(0).below(1);
}

CyclicScheduler::CyclicScheduler(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "cyclic");
}

double CyclicScheduler::height() const {
  const double up = static_cast<double>(options_.step_size_up);
  const double total = up + static_cast<double>(options_.step_size_down.value_or(options_.step_size_up));
  const double steps = static_cast<double>(steps_taken());
  const double cycle = std::floor(1 + steps / total);
  const double place = 1 + steps / total - cycle;
  const double share = up / total;
  const double height = place <= share ? place / share : (place - 1) / (share - 1);
  if (options_.mode == "triangular2") return height / std::pow(2, cycle - 1);
  if (options_.mode == "exp_range") return height * std::pow(options_.gamma, steps);
  return height;
}

double CyclicScheduler::next_lr(size_t group, double /*current*/) const {
  return options_.base_lr + (options_.max_lr.value_or(base_lr(group)) - options_.base_lr) * height();
}

State CyclicScheduler::state_dict() const {
  State state = StepwiseScheduler::state_dict();
  // For programs that read checkpoints in another format.
  State lower = State::list();
  State upper = State::list();
  for (size_t group = 0; group < group_count(); ++group) {
    lower.as_list().emplace_back(options_.base_lr);
    upper.as_list().emplace_back(options_.max_lr.value_or(base_lr(group)));
  }
  state["lower_lrs"] = std::move(lower);
  state["upper_lrs"] = std::move(upper);
  return state;
}

void CyclicScheduler::on_lrs_set() {
  if (!options_.cycle_momentum) return;
  const double momentum = options_.max_momentum - (options_.max_momentum - options_.base_momentum) * height();
  for (auto& group : optimizer().param_groups())
    if (!set_momentum(group.options(), momentum))
      fail(
          "cannot cycle the momentum of this optimizer, which has neither a momentum nor betas; set cycle_momentum to "
          "false");
}

}  // namespace levin::optim
