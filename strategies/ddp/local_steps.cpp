#include <levin/strategies/ddp/local_steps.h>

#include <levin/core/base/error.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/optim/optimizer_capabilities.h>
#include <levin/core/optim/optimizer_state.h>
#include <levin/core/optim/parameter_names.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <map>
#include <utility>

namespace levin {
namespace {

/// Sums of 16 bits would round.
at::ScalarType type_of_mean(const at::Tensor& tensor) {
  return at::isReducedFloatingType(tensor.scalar_type()) ? at::kFloat : tensor.scalar_type();
}

}  // namespace

void OuterOptimizerOptions::describe(Schema<OuterOptimizerOptions>& schema) {
  using O = OuterOptimizerOptions;
  schema.field("name", &O::name, "optimizer of the outer steps").one_of({"sgd"});
  schema.field("lr", &O::lr, "learning rate of the outer steps").above(0);
  schema.field("momentum", &O::momentum, "momentum of the outer steps").at_least(0).below(1);
  schema.field("nesterov", &O::nesterov, "Nesterov's momentum");
}

void LocalSteps::begin(Module& module, std::shared_ptr<Collective> replicas) {
  module_ = &module;
  all_ = named_unique_parameters(module);
  buffers_.clear();
  if (options_.average_buffers)
    for (const auto& item : module.named_buffers())
      if (item.value().defined() && item.value().is_floating_point()) buffers_.emplace_back(item.key(), item.value());
  optimizers_.clear();
  to_restore_ = {};
  restart(std::move(replicas));
}

void LocalSteps::restart(std::shared_ptr<Collective> replicas) {
  replicas_ = std::move(replicas);
  weights_.clear();
  is_weight_.assign(all_.size(), 0);
  steps_ = 0;
  own_.clear();
}

void LocalSteps::end() {
  restart(nullptr);
  module_ = nullptr;
  all_.clear();
  buffers_.clear();
  optimizers_.clear();
  to_restore_ = {};
}

void LocalSteps::begin_step() {
  if (replicas_ == nullptr) return;
  show_own();
  const at::NoGradGuard no_grad;
  // What is frozen when a window begins stays as it is, and begins anew where it is trained again.
  if (steps_ == 0) std::erase_if(weights_, [](const Weight& weight) { return !weight.parameter.requires_grad(); });
  for (size_t i = 0; i < all_.size(); ++i) {
    const auto& [name, parameter] = all_[i];
    if (steps_ == 0 && !parameter.requires_grad()) is_weight_[i] = 0;
    if (is_weight_[i] != 0 || !parameter.requires_grad()) continue;
    is_weight_[i] = 1;
    Weight weight{.name = name, .parameter = parameter};
    if (options_.sync == ReplicaSync::kDiloco) {
      weight.agreed = parameter.detach().to(type_of_mean(parameter), /*non_blocking=*/false, /*copy=*/true);
      weight.velocity = at::zeros_like(weight.agreed);
    }
    weights_.push_back(std::move(weight));
  }
}

void LocalSteps::finish_step() {
  if (replicas_ == nullptr) return;
  if (++steps_ < options_.every) return;
  steps_ = 0;
  agree();
}

std::vector<at::Tensor> LocalSteps::mean_of(const std::vector<at::Tensor>& tensors) const {
  std::map<at::ScalarType, std::vector<size_t>> by_type;
  for (size_t i = 0; i < tensors.size(); ++i) by_type[type_of_mean(tensors[i])].push_back(i);
  std::vector<at::Tensor> means(tensors.size());
  std::vector<std::pair<at::Tensor, std::unique_ptr<Work>>> under_way;
  for (const auto& [type, members] : by_type) {
    std::vector<at::Tensor> flat;
    for (const size_t i : members) flat.push_back(tensors[i].detach().to(type).reshape({-1}));
    at::Tensor whole = at::cat(flat);
    auto work = replicas_->all_reduce(whole, ReduceOp::kMean);
    under_way.emplace_back(std::move(whole), std::move(work));
  }
  auto reduced = under_way.begin();
  for (const auto& [type, members] : by_type) {
    reduced->second->wait();
    int64_t offset = 0;
    for (const size_t i : members) {
      means[i] = reduced->first.narrow(0, offset, tensors[i].numel()).view(tensors[i].sizes());
      offset += tensors[i].numel();
    }
    ++reduced;
  }
  return means;
}

std::vector<at::Tensor> LocalSteps::parameters() const {
  std::vector<at::Tensor> tensors;
  for (const Weight& weight : weights_) tensors.push_back(weight.parameter.detach());
  return tensors;
}

void LocalSteps::agree() {
  const at::NoGradGuard no_grad;
  const bool has_outer_steps = options_.sync == ReplicaSync::kDiloco;
  std::vector<at::Tensor> tensors = parameters();
  if (has_outer_steps)
    for (size_t i = 0; i < tensors.size(); ++i) {
      // From what the window began with, which is rounded where parameters have 16 bits.
      const at::Tensor& agreed = weights_[i].agreed;
      tensors[i] = agreed.to(tensors[i].scalar_type()).to(agreed.scalar_type()) - tensors[i];
    }
  for (const auto& [name, buffer] : buffers_) tensors.push_back(buffer);
  const std::vector<at::Tensor> means = mean_of(tensors);
  const OuterOptimizerOptions& outer = options_.outer;
  for (size_t i = 0; i < weights_.size(); ++i) {
    Weight& weight = weights_[i];
    at::Tensor parameter = weight.parameter.detach();
    if (!has_outer_steps) {
      parameter.copy_(means[i]);
      continue;
    }
    // As torch.optim.SGD, whose gradient the mean change is.
    at::Tensor change = means[i];
    weight.velocity.mul_(outer.momentum).add_(change);
    change = outer.nesterov ? change.add(weight.velocity, outer.momentum) : weight.velocity;
    weight.agreed.sub_(change, outer.lr);
    parameter.copy_(weight.agreed);
  }
  for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].second.copy_(means[weights_.size() + i]);
}

void LocalSteps::show_mean() {
  if (replicas_ == nullptr || steps_ == 0 || !own_.empty()) return;
  // What is kept must not be of inference mode, whose tensors training cannot use.
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors = parameters();
  for (const auto& [name, buffer] : buffers_) tensors.push_back(buffer);
  for (const at::Tensor& tensor : tensors) own_.push_back(tensor.clone());
  const std::vector<at::Tensor> means = mean_of(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(means[i]);
}

void LocalSteps::show_own() {
  if (own_.empty()) return;
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors = parameters();
  for (const auto& [name, buffer] : buffers_) tensors.push_back(buffer);
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(own_[i]);
  own_.clear();
}

State LocalSteps::module_state(Module& module) {
  const bool shows_own = own_.empty();
  show_mean();
  State state = DividedModel::module_state(module);
  if (!shows_own || own_.empty()) return state;
  // The tree has the module's tensors, which change back.
  for (auto& [name, node] : state.as_map())
    if (node.is_tensor()) node = State(node.as_tensor().clone());
  show_own();
  return state;
}

void LocalSteps::check_optimizer(const torch::optim::Optimizer& optimizer) {
  if (optim::capabilities_of(optimizer).needs_closure)
    throw ConfigError(
        "trainer.strategy.replicate.sync: replicas step alone, but an optimizer that evaluates the loss itself (LBFGS, "
        "SAM) asks all ranks for it; valid: another optimizer, or sync: gradients");
}

// ---- State

State LocalSteps::state_dict() const {
  if (replicas_ == nullptr || weights_.empty()) return {};  // nothing is a rank's own before the first step
  State state = State::map();
  state["steps"] = steps_;
  state["ranks"] = replicas_->world_size();
  if (steps_ > 0) {
    State weights = State::map();
    for (size_t i = 0; i < weights_.size(); ++i)
      weights[weights_[i].name] = own_.empty() ? weights_[i].parameter.detach() : own_[i];
    state["weights"] = std::move(weights);
  }
  State buffers = State::map();
  for (size_t i = 0; i < buffers_.size(); ++i)
    buffers[buffers_[i].first] = own_.empty() ? buffers_[i].second : own_[weights_.size() + i];
  state["buffers"] = std::move(buffers);
  // Those of rank 0 are in the checkpoint already.
  if (replicas_->rank() > 0) {
    State optimizers = State::list();
    const optim::ParameterNames names(*module_);
    for (const auto& optimizer : optimizers_) optimizers.push_back(optim::optimizer_state_dict(*optimizer, names));
    state["optimizers"] = std::move(optimizers);
  }
  // The same on every rank: rank 0's is saved, and its names everywhere.
  if (options_.sync == ReplicaSync::kDiloco) {
    State outer = State::map();
    for (const Weight& weight : weights_) {
      State of_weight = State::map();
      if (replicas_->rank() == 0) {
        of_weight["agreed"] = weight.agreed;
        of_weight["velocity"] = weight.velocity;
      }
      outer[weight.name] = std::move(of_weight);
    }
    state["outer"] = std::move(outer);
  }
  return state;
}

void LocalSteps::load_state_dict(const State& state) {
  if (replicas_ == nullptr || state.is_null()) return;
  if (optimizers_.empty())
    to_restore_ = state;
  else
    restore(state);
}

void LocalSteps::set_optimizers(const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers) {
  optimizers_ = optimizers;
  if (const State state = std::exchange(to_restore_, {}); !state.is_null()) restore(state);
}

LocalSteps::Weight* LocalSteps::find(const std::string& name) {
  const auto found =
      std::find_if(weights_.begin(), weights_.end(), [&](const Weight& weight) { return weight.name == name; });
  return found == weights_.end() ? nullptr : &*found;
}

void LocalSteps::restore(const State& state) {
  const at::NoGradGuard no_grad;
  weights_.clear();
  is_weight_.assign(all_.size(), 0);
  begin_step();
  steps_ = state.at("steps").as_int();
  if (const State* outer = state.find("outer"); outer != nullptr && options_.sync == ReplicaSync::kDiloco)
    for (const auto& [name, of_weight] : outer->as_map()) {
      Weight* const weight = find(name);
      if (weight == nullptr) continue;  // it is frozen now
      if (const State* agreed = of_weight.find("agreed"); agreed != nullptr && replicas_->rank() == 0) {
        copy_in_place(weight->agreed, agreed->as_tensor(), name);
        copy_in_place(weight->velocity, of_weight.at("velocity").as_tensor(), name);
      }
      replicas_->broadcast(weight->agreed, /*root=*/0)->wait();
      replicas_->broadcast(weight->velocity, /*root=*/0)->wait();
    }
  // Of other ranks only what they agreed on is of use.
  if (state.at("ranks").as_int() != replicas_->world_size()) return;
  if (const State* weights = state.find("weights"))
    for (const auto& [name, tensor] : weights->as_map())
      if (Weight* const weight = find(name)) {
        at::Tensor parameter = weight->parameter.detach();
        copy_in_place(parameter, tensor.as_tensor(), name);
      }
  for (auto& [name, buffer] : buffers_)
    if (const State* saved = state.at("buffers").find(name)) copy_in_place(buffer, saved->as_tensor(), name);
  const State* const optimizers = state.find("optimizers");
  if (optimizers == nullptr) return;
  const optim::ParameterNames names(*module_);
  for (size_t i = 0; i < std::min(optimizers->as_list().size(), optimizers_.size()); ++i)
    optim::load_optimizer_state_dict(*optimizers_[i], names, optimizers->as_list()[i]);
}

}  // namespace levin
