#include <levin/core/optim/scheduler.h>

#include <levin/core/base/error.h>
#include <levin/core/base/recording.h>
#include <levin/core/optim/group_options.h>

#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <algorithm>

namespace levin::optim {
namespace {

State to_list(const std::vector<double>& values) {
  State list = State::list();
  for (const double value : values) list.push_back(value);
  return list;
}

std::vector<double> from_list(const State& list) {
  std::vector<double> values;
  for (const auto& value : list.as_list()) values.push_back(value.as_double());
  return values;
}

}  // namespace

void Scheduler::attach(torch::optim::Optimizer& optimizer) { attach(optimizer, learning_rates(optimizer)); }

void Scheduler::attach(torch::optim::Optimizer& optimizer, const std::vector<double>& initial_lrs) {
  bind(optimizer, initial_lrs);
  begin();
}

void Scheduler::bind(torch::optim::Optimizer& optimizer, const std::vector<double>& initial_lrs) {
  LEVIN_CHECK(initial_lrs.size() == optimizer.param_groups().size(), "one initial learning rate for each group");
  optimizer_ = &optimizer;
  base_lrs_ = initial_lrs;
  record_lrs();
}

void Scheduler::step(double /*metric*/) {
  fail("steps without a metric; got one; hint: only reduce_on_plateau follows a metric");
}

torch::optim::Optimizer& Scheduler::optimizer() const {
  if (optimizer_ == nullptr) fail("was stepped before it was attached to an optimizer; call attach first");
  return *optimizer_;
}

size_t Scheduler::group_count() const { return optimizer().param_groups().size(); }

double Scheduler::group_lr(size_t group) const { return optimizer().param_groups()[group].options().get_lr(); }

void Scheduler::set_group_lr(size_t group, double lr) { optimizer().param_groups()[group].options().set_lr(lr); }

void Scheduler::adopt_new_groups() {
  for (size_t group = base_lrs_.size(); group < group_count(); ++group) base_lrs_.push_back(group_lr(group));
}

void Scheduler::reset_to_base_lrs() {
  adopt_new_groups();
  for (size_t group = 0; group < group_count(); ++group) set_group_lr(group, base_lr(group));
}

void Scheduler::record_lrs() {
  last_lr_.resize(group_count());
  for (size_t group = 0; group < last_lr_.size(); ++group) last_lr_[group] = group_lr(group);
}

int64_t Scheduler::resolved_length(const std::optional<int64_t>& option, const char* option_name) const {
  if (option) return *option;
  if (estimated_total_ < 0)
    fail(
        fmt::format("needs {} because the length of the run is not known; got a run without an end (max_epochs and "
                    "max_steps of -1, or data without a size); set {} in the scheduler's options",
                    option_name, option_name));
  return std::max<int64_t>(estimated_total_, 1);
}

void Scheduler::fail(const std::string& message) const {
  const std::string& name = init_name();
  throw Error("scheduler",
              (name.empty() ? std::string("a learning rate scheduler") : "'" + name + "'") + " " + message);
}

State Scheduler::learning_rates_state() const {
  State state = State::map();
  state["base_lrs"] = to_list(base_lrs_);
  state["last_lr"] = to_list(last_lr_);
  return state;
}

void Scheduler::load_learning_rates(const State& state) {
  base_lrs_ = from_list(state.at("base_lrs"));
  last_lr_ = from_list(state.at("last_lr"));
}

void StepwiseScheduler::begin() {
  steps_taken_ = 0;
  adopt_new_groups();
  on_count_changed();
  for (size_t group = 0; group < group_count(); ++group) set_group_lr(group, first_lr(group, group_lr(group)));
  on_lrs_set();
  record_lrs();
}

void StepwiseScheduler::step() {
  refuse_while_recording("a step of a scheduler", "step it in on_train_batch_end or on_train_epoch_end");
  adopt_new_groups();
  ++steps_taken_;
  on_count_changed();
  for (size_t group = 0; group < group_count(); ++group) set_group_lr(group, next_lr(group, group_lr(group)));
  on_lrs_set();
  record_lrs();
}

State StepwiseScheduler::state_dict() const {
  State state = learning_rates_state();
  state["steps"] = steps_taken_;
  return state;
}

void StepwiseScheduler::load_state_dict(const State& state) {
  load_learning_rates(state);
  steps_taken_ = state.at("steps").as_int();
}

}  // namespace levin::optim
