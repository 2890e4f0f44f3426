#include <levin/core/interfaces/parallel_model.h>

#include <levin/core/base/error.h>
#include <levin/core/base/expanded_tensor.h>
#include <levin/core/interchange/weight_plan.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/optimizer_fields.h>
#include <levin/core/interfaces/saved_model.h>
#include <levin/core/optim/gradient_clipping.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <utility>

namespace levin {
ParallelModel::ParallelModel(std::string component, std::vector<Entry> entries, Ranks ranks)
    : component_(std::move(component)), entries_(std::move(entries)), ranks_(std::move(ranks)) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const auto& [name, parameter, part, is_copy] = entries_[i];
    by_name_[name] = i;
    has_copies_ |= is_copy;
    if (!parameter.defined()) continue;
    by_parameter_[parameter.unsafeGetTensorImpl()] = i;
    names_.add(name, part.local_shard());
  }
}

const ParallelModel::Entry* ParallelModel::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

bool ParallelModel::is_copy(const at::Tensor& local_shard) const {
  return has_copies_ && find(names_.require(local_shard))->is_copy;
}

// ---- What optimizers step

at::Tensor ParallelModel::local_shard(const at::Tensor& parameter) const {
  if (entries_.empty()) return parameter;
  const auto found = by_parameter_.find(parameter.unsafeGetTensorImpl());
  if (found == by_parameter_.end())
    throw Error(component_,
                "an optimizer was given a parameter that the module does not have; hint: register it with the module "
                "(register_parameter, register_module)");
  return entries_[found->second].part.local_shard();
}

optim::ParameterNames ParallelModel::parameter_names(const Module& module) const {
  return entries_.empty() ? optim::ParameterNames(module) : names_;
}

void ParallelModel::combine_found_inf(at::Tensor& found_inf) const {
  if (ranks_.group != nullptr) ranks_.group->all_reduce(found_inf, ReduceOp::kMax)->wait();
}

at::Tensor ParallelModel::sum_norms(const at::Tensor& norms, double order) const {
  if (ranks_.group == nullptr) return norms;
  const at::NoGradGuard no_grad;
  // With offload the gradients are on the host, which the group may not carry.
  at::Tensor combined = norms.to(ranks_.device, norms.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  if (order == 2) combined.square_();
  ranks_.group->all_reduce(combined, std::isinf(order) ? ReduceOp::kMax : ReduceOp::kSum)->wait();
  if (order == 2) combined.sqrt_();
  return combined.to(norms.device());
}

at::Tensor ParallelModel::gradient_norm(const std::vector<at::Tensor>& local_shards) const {
  const auto sum = [this](const at::Tensor& norm) { return sum_norms(norm, 2); };
  if (!has_copies_) return optim::gradient_norm(local_shards, sum);
  std::vector<at::Tensor> counted;
  for (const at::Tensor& local_shard : local_shards)
    if (!is_copy(local_shard)) counted.push_back(local_shard);
  const at::Tensor norm = optim::gradient_norm(counted, sum);
  if (norm.defined()) return norm;
  // The ranks that count the copies wait for this one.
  const at::Tensor of_copies = optim::gradient_norm(local_shards);
  return of_copies.defined() ? sum_norms(of_copies.zero_(), 2) : of_copies;
}

at::Tensor ParallelModel::reduce_norms(at::Tensor norms, const std::vector<at::Tensor>& local_shards,
                                       double order) const {
  if (!has_copies_) return sum_norms(norms, order);
  const at::NoGradGuard no_grad;
  at::Tensor counted = norms.clone();
  for (size_t i = 0; i < local_shards.size(); ++i)
    if (is_copy(local_shards[i])) counted[static_cast<int64_t>(i)].zero_();
  return sum_norms(counted, order);
}

void ParallelModel::clip_adaptively(const std::vector<at::Tensor>& local_shards, double ratio) const {
  if (ranks_.group != nullptr && ranks_.divide_tensors) return clip_parts_adaptively(local_shards, ratio);
  std::vector<at::Tensor> own;
  for (const at::Tensor& local_shard : local_shards)
    if (local_shard.numel() > 0) own.push_back(local_shard);
  if (!own.empty()) optim::clip_adaptively(own, ratio);
}

void ParallelModel::clip_parts_adaptively(const std::vector<at::Tensor>& local_shards, double ratio) const {
  const at::NoGradGuard no_grad;
  struct Part {
    at::Tensor local_shard;
    at::Tensor rows;  ///< of each element, counted through all parameters
    bool is_copy;
  };
  std::vector<Part> parts;
  int64_t rows = 0;
  for (const at::Tensor& local_shard : local_shards) {
    if (!local_shard.grad().defined()) continue;
    const Entry& entry = *find(names_.require(local_shard));
    parts.push_back({local_shard, entry.part.rows().add_(rows), entry.is_copy});
    rows += entry.part.row_count();
  }
  if (parts.empty()) return;
  const auto type = parts.front().local_shard.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor squares = at::zeros({2, rows}, parts.front().local_shard.options().requires_grad(false).dtype(type));
  const auto flat = [](const at::Tensor& tensor) { return tensor.detach().view({-1}); };
  for (const Part& part : parts) {
    if (part.is_copy) continue;
    squares[0].index_add_(0, part.rows, flat(part.local_shard).to(type).square());
    squares[1].index_add_(0, part.rows, flat(part.local_shard.grad()).to(type).square());
  }
  at::Tensor of_ranks = squares.to(ranks_.device);
  ranks_.group->all_reduce(of_ranks, ReduceOp::kSum)->wait();
  const at::Tensor norms = of_ranks.sqrt().to(squares.device());
  const at::Tensor divisors = optim::adaptive_divisor(norms[0], norms[1], ratio);
  for (const Part& part : parts) {
    at::Tensor gradient = flat(part.local_shard.grad());
    gradient.div_(divisors.index_select(0, part.rows).to(gradient.scalar_type()));
  }
}

// ---- State

State ParallelModel::module_state(const Module& module) const {
  State state = State::map();
  for (const auto& [name, tensor] : saved_tensors(module)) {
    const Entry* const entry = find(name);
    state[name] =
        entry != nullptr ? State(entry->part.placed(entry->part.local_shard(), name)) : State(tensor.detach());
  }
  return state;
}

void ParallelModel::load_module_state(Module& module, const State& state) const {
  // Before the first tensor changes, so that a refused checkpoint leaves the module as it was.
  State of_module = state;  // as the module has them: where layers are cut, that is a share
  for (const auto& [name, tensor] : saved_tensors(module))
    if (const Entry* const entry = find(name); entry != nullptr && state.find(name) != nullptr)
      if (entry->part.is_of(state.at(name).as_leaf())) of_module[name] = State(tensor.detach());
  check_named_tensors(module, of_module);
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : saved_tensors(module)) {
    const TensorLeaf& leaf = state.at(name).as_leaf();
    if (const Entry* const entry = find(name); entry != nullptr)
      entry->part.load(leaf);
    else if (leaf.saved != nullptr)
      read_into(*leaf.saved, tensor.detach());
    else
      copy_elements(leaf.value, tensor.detach());
  }
}

State ParallelModel::place_optimizer_state(const State& state) const {
  if (entries_.empty()) return state;
  return with_parameters(state, [&](const std::string& name, const State& fields) {
    const Entry* const entry = find(name);
    if (entry == nullptr) return fields;
    const ParameterPart* const part = &entry->part;
    return with_fields(fields, [&](const TensorLeaf& leaf) {
      if (leaf.value.sizes() == part->local_shard().sizes()) return State(part->placed(leaf.value, name));
      if (!part->has_first_element() || leaf.value.dim() == 0) return State(leaf);
      return State(TensorLeaf{leaf.value,
                              {.kind = Placement::Kind::kSharded,
                               .shard_name = name,
                               .offset = 0,
                               .global_shape = leaf.value.sizes().vec()}});
    });
  });
}

State ParallelModel::own_optimizer_state(const State& saved) const {
  if (entries_.empty()) return saved;
  return with_parameters(saved, [&](const std::string& name, const State& fields) {
    const Entry* const entry = find(name);
    if (entry == nullptr) return fields;
    const ParameterPart* const part = &entry->part;
    return with_fields(
        fields, [&](const TensorLeaf& leaf) { return part->is_of(leaf) ? State(part->own_part(leaf)) : State(leaf); });
  });
}

void check_named_tensors(const Module& module, const State& state) { check_saved_model(module, {.tensors = state}); }

void load_named_tensors(Module& module, const State& state) { ParallelModel().load_module_state(module, state); }

}  // namespace levin
