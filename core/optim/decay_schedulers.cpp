#include <levin/core/optim/decay_schedulers.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

// The recurrences are those of torch.optim.lr_scheduler, so that schedules compose as they do there.
namespace levin::optim {

using std::numbers::pi;

namespace {

/// Of one period, so that twice as many, or a product of two, can be counted.
constexpr int64_t kLongestPeriod = 1'000'000'000;

}  // namespace

void StepOptions::describe(Schema<StepOptions>& schema) {
  schema.field("step_size", &StepOptions::step_size, "steps between two reductions").at_least(1);
  schema.field("gamma", &StepOptions::gamma, "factor of each reduction").above(0);
}

StepScheduler::StepScheduler(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "step");
}

double StepScheduler::next_lr(size_t /*group*/, double current) const {
  return steps_taken() % options_.step_size == 0 ? current * options_.gamma : current;
}

void MultiStepOptions::describe(Schema<MultiStepOptions>& schema) {
  schema.field("milestones", &MultiStepOptions::milestones, "steps at which the learning rate is reduced")
      .require("numbers of at least 1", [](const std::vector<int64_t>& milestones) {
        return std::all_of(milestones.begin(), milestones.end(), [](int64_t milestone) { return milestone >= 1; });
      });
  schema.field("gamma", &MultiStepOptions::gamma, "factor of each reduction").above(0);
}

MultiStepScheduler::MultiStepScheduler(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "multi_step");
}

double MultiStepScheduler::next_lr(size_t /*group*/, double current) const {
  const auto times = std::count(options_.milestones.begin(), options_.milestones.end(), steps_taken());
  return times == 0 ? current : current * std::pow(options_.gamma, static_cast<double>(times));
}

void ExponentialOptions::describe(Schema<ExponentialOptions>& schema) {
  schema.field("gamma", &ExponentialOptions::gamma, "factor of every step").above(0);
}

ExponentialScheduler::ExponentialScheduler(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "exponential");
}

double ExponentialScheduler::next_lr(size_t /*group*/, double current) const { return current * options_.gamma; }

void LinearWarmupOptions::describe(Schema<LinearWarmupOptions>& schema) {
  schema.field("start_factor", &LinearWarmupOptions::start_factor, "factor of the learning rate at the start")
      .above(0)
      .at_most(1);
  schema.field("end_factor", &LinearWarmupOptions::end_factor, "factor of the learning rate at the end")
      .at_least(0)
      .at_most(1);
  schema.field("total_iters", &LinearWarmupOptions::total_iters, "steps from the start to the end").at_least(1);
}

LinearWarmupScheduler::LinearWarmupScheduler(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "linear_warmup");
}

double LinearWarmupScheduler::first_lr(size_t /*group*/, double current) const {
  return current * options_.start_factor;
}

double LinearWarmupScheduler::next_lr(size_t /*group*/, double current) const {
  if (steps_taken() > options_.total_iters) return current;
  const double rise = options_.end_factor - options_.start_factor;
  const double before =
      static_cast<double>(options_.total_iters) * options_.start_factor + static_cast<double>(steps_taken() - 1) * rise;
  return current * (1.0 + rise / before);
}

void CosineOptions::describe(Schema<CosineOptions>& schema) {
  schema.field("t_max", &CosineOptions::t_max, "steps down to eta_min; null: the whole run")
      .at_least(1)
      .at_most(kLongestPeriod);
  schema.field("eta_min", &CosineOptions::eta_min, "smallest learning rate").at_least(0);
}

CosineScheduler::CosineScheduler(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "cosine");
}

void CosineScheduler::bind(torch::optim::Optimizer& optimizer, const std::vector<double>& initial_lrs) {
  t_max_ = resolved_length(options_.t_max, "t_max");
  Scheduler::bind(optimizer, initial_lrs);
}

double CosineScheduler::next_lr(size_t group, double current) const {
  const double t_max = static_cast<double>(t_max_);
  const double steps = static_cast<double>(steps_taken());
  // At the bottom the ratio below would divide by zero.
  if ((steps_taken() - 1 - t_max_) % (2 * t_max_) == 0)
    return current + (base_lr(group) - options_.eta_min) * (1 - std::cos(pi / t_max)) / 2;
  return (1 + std::cos(pi * steps / t_max)) / (1 + std::cos(pi * (steps - 1) / t_max)) * (current - options_.eta_min) +
         options_.eta_min;
}

void CosineWarmRestartsOptions::describe(Schema<CosineWarmRestartsOptions>& schema) {
  schema.field("t_0", &CosineWarmRestartsOptions::t_0, "steps of the first period").at_least(1).at_most(kLongestPeriod);
  schema.field("t_mult", &CosineWarmRestartsOptions::t_mult, "growth of the period at each restart")
      .at_least(1)
      .at_most(kLongestPeriod);
  schema.field("eta_min", &CosineWarmRestartsOptions::eta_min, "smallest learning rate").at_least(0);
}

CosineWarmRestartsScheduler::CosineWarmRestartsScheduler(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "cosine_warm_restarts");
}

void CosineWarmRestartsScheduler::on_count_changed() {
  if (steps_taken() == 0) {
    period_ = options_.t_0;
    in_period_ = 0;
  } else if (++in_period_ >= period_) {
    in_period_ = 0;
    period_ *= options_.t_mult;
  }
}

double CosineWarmRestartsScheduler::first_lr(size_t group, double current) const { return next_lr(group, current); }

double CosineWarmRestartsScheduler::next_lr(size_t group, double /*current*/) const {
  const double angle = pi * static_cast<double>(in_period_) / static_cast<double>(period_);
  return options_.eta_min + (base_lr(group) - options_.eta_min) * (1 + std::cos(angle)) / 2;
}

State CosineWarmRestartsScheduler::state_dict() const {
  State state = StepwiseScheduler::state_dict();
  state["period"] = period_;
  state["in_period"] = in_period_;
  return state;
}

void CosineWarmRestartsScheduler::load_state_dict(const State& state) {
  StepwiseScheduler::load_state_dict(state);
  period_ = state.at("period").as_int();
  in_period_ = state.at("in_period").as_int();
}

void LambdaScheduler::bind(torch::optim::Optimizer& optimizer, const std::vector<double>& initial_lrs) {
  Scheduler::bind(optimizer, initial_lrs);
  if (factors_.size() != 1 && factors_.size() != group_count())
    fail(fmt::format("needs one function, or one for each parameter group; got {} functions for {} groups",
                     factors_.size(), group_count()));
}

double LambdaScheduler::next_lr(size_t group, double /*current*/) const {
  const auto& factor = factors_.size() == 1 ? factors_.front() : factors_.at(group);
  return base_lr(group) * factor(steps_taken());
}

}  // namespace levin::optim
