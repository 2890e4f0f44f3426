#include <levin/core/optim/wrapped_optimizer.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

namespace levin::optim {
namespace {

torch::optim::Optimizer& checked_base(std::string_view name, const std::shared_ptr<torch::optim::Optimizer>& base) {
  if (base == nullptr) throw Error("optim", fmt::format("{} was given no optimizer to wrap", name));
  if (dynamic_cast<const HasParameterStates*>(base.get()) == nullptr)
    throw Error("optim", fmt::format("{} cannot wrap this optimizer; valid: those of levin::optim", name));
  if (capabilities_of(*base).needs_closure)
    throw Error("optim", fmt::format("{} cannot wrap an optimizer that evaluates the loss itself; hint: put that one "
                                     "outside",
                                     name));
  return *base;
}

HasParameterStates& states_of(torch::optim::Optimizer& optimizer) {
  return dynamic_cast<HasParameterStates&>(optimizer);
}

}  // namespace

/// Puts the groups into the other optimizer for its lifetime.
class WrappedOptimizer::Lent {
 public:
  Lent(std::vector<torch::optim::OptimizerParamGroup>& groups, torch::optim::Optimizer& base)
      : groups_(groups), base_(base) {
    base_.param_groups().swap(groups_);
  }
  ~Lent() { base_.param_groups().swap(groups_); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

 private:
  std::vector<torch::optim::OptimizerParamGroup>& groups_;
  torch::optim::Optimizer& base_;
};

WrappedOptimizer::WrappedOptimizer(std::string_view name, std::shared_ptr<torch::optim::Optimizer> base)
    : Optimizer(std::exchange(checked_base(name, base).param_groups(), {}), base->defaults().clone()),
      base_(std::move(base)) {}

void WrappedOptimizer::step_base() {
  const Lent lent(param_groups_, *base_);
  base_->step();
}

State WrappedOptimizer::parameter_states(const ParameterNames& names) const {
  return with_own(names, &HasParameterStates::parameter_states);
}
State WrappedOptimizer::held_states(const ParameterNames& names) const {
  return with_own(names, &HasParameterStates::held_states);
}

State WrappedOptimizer::with_own(const ParameterNames& names,
                                 State (HasParameterStates::*of_base)(const ParameterNames&) const) const {
  State states;
  {
    // The groups come back as they were.
    const Lent lent(const_cast<WrappedOptimizer*>(this)->param_groups_, *base_);  // NOLINT
    states = (states_of(*base_).*of_base)(names);
  }
  for (const auto& group : param_groups_) {
    for (const auto& param : group.params()) {
      State own = State::map();
      save_own(param, own);
      if (own.as_map().empty()) continue;
      State& saved = states[names.require(param)];
      if (!saved.is_map()) saved = State::map();
      for (auto& [field, value] : own.as_map()) saved[field] = value;
    }
  }
  return states;
}

void WrappedOptimizer::load_parameter_states(const ParameterNames& names, const State& states) {
  State of_base = states;
  for (const auto& group : param_groups_) {
    for (const auto& param : group.params()) {
      auto& all = of_base.as_map();
      const auto saved = all.find(names.require(param));
      load_own(param, saved == all.end() ? nullptr : &saved->second);
      // The other optimizer has not stepped a parameter of which nothing else is left.
      if (saved != all.end() && saved->second.as_map().empty()) all.erase(saved);
    }
  }
  const Lent lent(param_groups_, *base_);
  states_of(*base_).load_parameter_states(names, of_base);
}

void WrappedOptimizer::save(torch::serialize::OutputArchive& /*archive*/) const {
  throw Error("optim", "a wrapped optimizer has no archive format; save levin::optim::optimizer_state_dict");
}

void WrappedOptimizer::load(torch::serialize::InputArchive& /*archive*/) {
  throw Error("optim", "a wrapped optimizer has no archive format; use levin::optim::load_optimizer_state_dict");
}

}  // namespace levin::optim
