#include <levin/strategies/ranks/parameter_part.h>

#include <levin/core/interchange/weight_plan.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace levin {

int64_t ParameterPart::row_count() const { return shape_.size() <= 1 ? 1 : shape_.front(); }

at::Tensor ParameterPart::rows() const {
  const int64_t elements = std::accumulate(shape_.begin(), shape_.end(), int64_t{1}, std::multiplies<>());
  const int64_t row_size = std::max<int64_t>(1, elements / std::max<int64_t>(1, row_count()));
  return at::arange(offset_, offset_ + local_shard_.numel(),
                    at::TensorOptions().dtype(at::kLong).device(local_shard_.device()))
      .div_(row_size, "floor");
}

TensorLeaf ParameterPart::placed(const at::Tensor& value, const std::string& whole_name) const {
  return {value.detach().reshape({-1}),
          {.kind = Placement::Kind::kSharded, .shard_name = whole_name, .offset = offset_, .global_shape = shape_}};
}

bool ParameterPart::is_of(const TensorLeaf& leaf) const {
  const at::IntArrayRef shape = shape_;
  if (leaf.saved != nullptr) return shape == at::IntArrayRef(leaf.saved->shape());
  return leaf.placement.kind == Placement::Kind::kSharded ? shape == at::IntArrayRef(leaf.placement.global_shape)
                                                          : shape == leaf.value.sizes();
}

at::Tensor ParameterPart::own_part(const TensorLeaf& leaf) const {
  const int64_t size = local_shard_.numel();
  if (leaf.saved != nullptr) {
    const c10::InferenceMode ordinary(false);
    at::Tensor part = at::empty({size}, at::TensorOptions().dtype(leaf.saved->dtype()));
    if (size > 0) leaf.saved->read(offset_, part);
    return part.view(local_shard_.sizes());
  }
  if (leaf.placement.kind == Placement::Kind::kSharded) return leaf.value.view(local_shard_.sizes());
  return leaf.value.reshape({-1}).narrow(0, offset_, size).view(local_shard_.sizes());
}

void ParameterPart::load(const TensorLeaf& leaf) const {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  if (leaf.saved != nullptr && local_shard_.is_contiguous())
    read_part_into(*leaf.saved, offset_, local_shard_.detach());
  else
    local_shard_.detach().copy_(own_part(leaf));
}

namespace {

/// What optimizers keep beside tensors of a parameter's size.
bool is_counter(const std::string& field) { return field == "step"; }

/// Fields of a parameter, lists and mappings in them included, in which the tensors have been changed.
State with_fields(const State& fields, const std::function<State(const TensorLeaf&)>& change) {
  if (fields.is_tensor()) return change(fields.as_leaf());
  if (fields.is_list()) {
    State changed = State::list();
    for (const State& item : fields.as_list()) changed.push_back(with_fields(item, change));
    return changed;
  }
  if (!fields.is_map()) return fields;
  State changed = State::map();
  for (const auto& [field, value] : fields.as_map())
    changed[field] = is_counter(field) ? value : with_fields(value, change);
  return changed;
}

/// A tree of optim::optimizer_state_dict in which the fields of each parameter have been changed.
State with_parameters(const State& state,
                      const std::function<State(const std::string& name, const State& fields)>& change) {
  if (!state.is_map()) return state;
  State changed = State::map();
  for (const auto& [key, value] : state.as_map()) {
    if (key == "parameters") {
      State& parameters = changed[key] = State::map();
      for (const auto& [name, fields] : value.as_map()) parameters[name] = change(name, fields);
    } else if (key.starts_with("@") && value.is_map()) {
      changed[key] = change(key.substr(1), value);
    } else {
      changed[key] = with_parameters(value, change);
    }
  }
  return changed;
}

}  // namespace

State place_tensors(State tensors, const FindPart& find_part) {
  if (find_part == nullptr) return tensors;
  for (auto& [name, value] : tensors.as_map())
    if (const auto part = find_part(name)) value = part->placed(part->local_shard(), name);
  return tensors;
}

void load_tensors(Module& module, const State& state, const FindPart& find_part) {
  if (find_part == nullptr) return load_named_tensors(module, state);
  check_named_tensors(module, state);
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : saved_tensors(module)) {
    const TensorLeaf& leaf = state.at(name).as_leaf();
    if (const auto part = find_part(name))
      part->load(leaf);
    else if (leaf.saved != nullptr)
      read_into(*leaf.saved, tensor.detach());
    else
      tensor.detach().copy_(leaf.value);
  }
}

State place_parts(const State& state, const FindPart& find_part) {
  if (find_part == nullptr) return state;
  return with_parameters(state, [&](const std::string& name, const State& fields) {
    const auto part = find_part(name);
    if (!part) return fields;
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

State own_parts(const State& saved, const FindPart& find_part) {
  if (find_part == nullptr) return saved;
  return with_parameters(saved, [&](const std::string& name, const State& fields) {
    const auto part = find_part(name);
    if (!part) return fields;
    return with_fields(
        fields, [&](const TensorLeaf& leaf) { return part->is_of(leaf) ? State(part->own_part(leaf)) : State(leaf); });
  });
}

}  // namespace levin
