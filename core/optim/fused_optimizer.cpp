#include <levin/core/optim/fused_optimizer.h>

#include <levin/core/base/error.h>
#include <levin/core/base/gradient_groups.h>
#include <levin/core/base/recording.h>

#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <unordered_set>

namespace levin::optim {

struct FusedOptimizer::ParamState : torch::optim::OptimizerCloneableParamState<ParamState> {
  at::Tensor step;  ///< 0-dimensional float32, on the parameter's device unless steps_on_host()
  std::array<at::Tensor, kMaxStateFields> values;
  bool first_step = false;
};

namespace {

bool has_fused_kernel(c10::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16;
}

/// Drops second occurrences within a group and refuses what the kernels cannot update.
std::vector<torch::optim::OptimizerParamGroup> checked(std::string_view name,
                                                       std::vector<torch::optim::OptimizerParamGroup> groups) {
  std::unordered_set<const void*> seen;
  for (auto& group : groups) {
    std::vector<at::Tensor> unique;
    std::unordered_set<const void*> in_this_group;
    for (const auto& param : group.params()) {
      if (!param.defined()) throw Error("optim", fmt::format("{} was given an undefined parameter", name));
      if (!in_this_group.insert(param.unsafeGetTensorImpl()).second) continue;
      if (!seen.insert(param.unsafeGetTensorImpl()).second)
        throw Error("optim", fmt::format("{} was given a parameter in two groups; valid: each parameter in one", name));
      if (!param.is_leaf())
        throw Error("optim",
                    fmt::format("{} was given a tensor that was computed from others; valid: parameters", name));
      if (param.layout() != at::kStrided || !has_fused_kernel(param.scalar_type()))
        throw Error("optim",
                    fmt::format("{} was given a parameter of type {}{}; valid: dense float32, float64, float16 "
                                "and bfloat16; take an optimizer of torch::optim for others",
                                name, c10::toString(param.scalar_type()),
                                param.layout() == at::kStrided ? "" : " (not dense)"));
      unique.push_back(param);
    }
    group.params() = std::move(unique);
  }
  if (seen.empty())
    throw Error("optim", fmt::format("{} was given no parameters; make it after the layers, from parameters()", name));
  return groups;
}

/// Whether elements of both lie in the same order in memory; strides of dimensions of size 1 mean nothing.
bool same_memory_order(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t d = 0; d < a.dim(); ++d)
    if (a.size(d) > 1 && a.stride(d) != b.stride(d)) return false;
  return true;
}

/// The gradient in the parameter's memory order, which the fused kernels take for granted without a check.
at::Tensor aligned_gradient(const at::Tensor& param, const at::Tensor& grad) {
  if (grad.layout() != at::kStrided)
    throw Error("optim", fmt::format("a gradient has the layout {}; valid: Strided (dense) and Sparse (COO)",
                                     c10::str(grad.layout())));
  if (grad.scalar_type() != param.scalar_type())
    throw Error("optim", fmt::format("a gradient has another type than its parameter; got {} for {}",
                                     c10::toString(grad.scalar_type()), c10::toString(param.scalar_type())));
  if (grad.strides() == param.strides() || same_memory_order(param, grad)) return grad;
  at::Tensor aligned = at::empty_like(param);
  aligned.copy_(grad);
  return aligned;
}

/// Adds 1 to counters on the host.
void count_steps(const std::vector<at::Tensor>& steps) {
  for (const auto& step : steps) *step.mutable_data_ptr<float>() += 1;
}

at::Tensor on_device(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  // A copy to the host that nobody waits for would be read before it has arrived.
  return tensor.to(device, /*non_blocking=*/!device.is_cpu());
}

}  // namespace

FusedOptimizer::FusedOptimizer(std::string_view name, std::vector<torch::optim::OptimizerParamGroup> groups,
                               std::unique_ptr<torch::optim::OptimizerOptions> defaults)
    : Optimizer(checked(name, std::move(groups)), std::move(defaults)), name_(name) {}

at::Tensor FusedOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  fused_step();
  return loss;
}

void FusedOptimizer::fused_step(const StepScaling& scaling) {
  c10::InferenceMode normal_mode(false);
  at::NoGradGuard no_grad;
  caches_.resize(param_groups_.size());
  if (!is_recording()) write_learning_rates();
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    if (!collect_gradients(group)) rebuild(group);
    for (auto& lists : caches_[group].lists) step_lists(group, lists, scaling);
    for (const at::Tensor& param : with_rows_) step_rows(group, param, scaling);
    release_gradients(group, scaling.grad_scale.defined());
  }
}

bool FusedOptimizer::collect_gradients(size_t group) {
  with_rows_.clear();
  GroupCache& cache = caches_[group];
  const auto& params = param_groups_[group].params();
  if (cache.entries.size() != params.size() || cache.fields != state_fields(group).size()) return false;
  for (size_t i = 0; i < params.size(); ++i) {
    const at::Tensor& param = params[i];
    const Entry& entry = cache.entries[i];
    const c10::TensorImpl* impl = param.unsafeGetTensorImpl();
    if (impl != entry.param) return false;
    const at::Tensor& grad = impl->grad();
    const bool is_listed = grad.defined() && !grad.is_sparse();
    if (is_listed != (entry.lists >= 0)) return false;
    if (grad.defined() && !is_listed) with_rows_.push_back(param);
    if (!is_listed) continue;
    TensorLists& lists = cache.lists[entry.lists];
    if (param.scalar_type() != lists.dtype || param.device() != lists.device) return false;
    lists.grads[entry.index] = aligned_gradient(param, grad);
  }
  return true;
}

void FusedOptimizer::rebuild(size_t group) {
  with_rows_.clear();
  GroupCache& cache = caches_[group];
  cache.entries.clear();
  cache.lists.clear();
  cache.fields = state_fields(group).size();
  for (const auto& param : param_groups_[group].params()) {
    const at::Tensor& grad = param.unsafeGetTensorImpl()->grad();
    if (!grad.defined() || grad.is_sparse()) {
      if (grad.defined()) with_rows_.push_back(param);
      cache.entries.push_back({param.unsafeGetTensorImpl(), -1, 0});
      continue;
    }
    if (gradient_layouts(group) == GradientLayouts::kSparse)
      throw Error("optim", fmt::format("{} takes sparse gradients alone; got a dense one of shape {}; hint: give such "
                                       "parameters to another optimizer, such as adamw",
                                       name_, c10::str(param.sizes())));
    if (!param.is_non_overlapping_and_dense())
      throw Error("optim", fmt::format("{} cannot update a parameter with gaps or overlaps in its memory; make it "
                                       "contiguous first",
                                       name_));
    ParamState& state = materialize(group, param);
    TensorLists& lists = lists_for(cache, param, state.first_step);
    if (recordable_ && !lists.learning_rate.defined())
      lists.learning_rate = learning_rate_tensor(group, param.device());
    cache.entries.push_back({param.unsafeGetTensorImpl(), &lists - cache.lists.data(), lists.params.size()});
    lists.params.push_back(param);
    lists.grads.push_back(aligned_gradient(param, grad));
    if (counts_steps()) lists.steps.push_back(state.step);
    for (size_t field = 0; field < cache.fields; ++field) lists.states[field].push_back(state.values[field]);
  }
}

FusedOptimizer::TensorLists& FusedOptimizer::lists_for(GroupCache& cache, const at::Tensor& param, bool first_step) {
  for (auto& lists : cache.lists)
    if (lists.device == param.device() && lists.dtype == param.scalar_type() && lists.first_step == first_step)
      return lists;
  return cache.lists.emplace_back(TensorLists{.params = {},
                                              .grads = {},
                                              .steps = {},
                                              .states = {},
                                              .learning_rate = {},
                                              .device = param.device(),
                                              .dtype = param.scalar_type(),
                                              .first_step = first_step});
}

std::optional<std::vector<int64_t>> FusedOptimizer::state_sizes(size_t /*group*/, const StateField& /*field*/,
                                                                const at::Tensor& param) const {
  return param.sizes().vec();
}

c10::ScalarType FusedOptimizer::state_type(size_t /*group*/, const StateField& /*field*/,
                                           const at::Tensor& param) const {
  return param.scalar_type();
}

double FusedOptimizer::initial_value(size_t /*group*/, const StateField& /*field*/) const { return 0; }

FusedOptimizer::ParamState* FusedOptimizer::find_state(const at::Tensor& param) const {
  const auto found = state_.find(param.unsafeGetTensorImpl());
  return found == state_.end() ? nullptr : static_cast<ParamState*>(found->second.get());
}

FusedOptimizer::ParamState& FusedOptimizer::materialize(size_t group, const at::Tensor& param) {
  ParamState* state = find_state(param);
  if (state == nullptr) {
    auto made = std::make_unique<ParamState>();
    state = made.get();
    state->first_step = distinguishes_first_step();
    state_[param.unsafeGetTensorImpl()] = std::move(made);
  }
  if (counts_steps()) {
    const at::Device device = steps_on_host() ? at::Device(at::kCPU) : param.device();
    if (!state->step.defined())
      state->step = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(device));
    else if (state->step.device() != device)
      state->step = state->step.to(device);
  }
  const auto fields = state_fields(group);
  for (size_t i = 0; i < fields.size(); ++i) {
    at::Tensor& value = state->values[i];
    if (fields[i].is_number) {
      if (!value.defined())
        value = at::full({}, initial_value(group, fields[i]), at::TensorOptions().dtype(at::kFloat));
      continue;
    }
    const auto sizes = state_sizes(group, fields[i], param);
    if (!sizes.has_value()) continue;
    const c10::ScalarType type = state_type(group, fields[i], param);
    const bool like_param = param.sizes() == *sizes;
    // A parameter that was moved or converted since takes its state along.
    const bool fits = value.defined() && value.device() == param.device() && value.scalar_type() == type &&
                      (!like_param || same_memory_order(param, value));
    if (fits) continue;
    const at::Tensor before = value;
    const double initial = initial_value(group, fields[i]);
    value = like_param ? at::full_like(param, initial, at::TensorOptions().dtype(type).requires_grad(false))
                       : at::full(*sizes, initial, param.options().dtype(type).requires_grad(false));
    if (before.defined()) value.copy_(before);
  }
  return *state;
}

void FusedOptimizer::step_lists(size_t group, TensorLists& lists, const StepScaling& scaling) {
  if (lists.first_step) refuse_while_recording("the first step of a parameter", "let the optimizer take a step before");
  const bool on_host = (lists.device.is_cpu() && (!recordable_ || !scaling.found_inf.defined())) || steps_on_host();
  const at::Tensor found_inf = on_device(scaling.found_inf, lists.device);
  const at::Tensor grad_scale = on_device(scaling.grad_scale, lists.device);
  // On a GPU the host must not wait for found_inf, except where it decides which kind of step the next one is.
  if (found_inf.defined() && (on_host || lists.first_step) && found_inf.item<float>() != 0) return;

  if (on_host && !is_recording()) {
    count_steps(lists.steps);
  } else if (on_host && !lists.steps.empty() &&
             do_host_work(lists.steps, [steps = lists.steps] { count_steps(steps); })) {
    // Cheaper than an operator, also in replays.
  } else if (!lists.steps.empty()) {
    at::_foreach_add_(lists.steps, 1);
  }
  KernelScaling kernel_scaling;
  if (grad_scale.defined()) kernel_scaling.grad_scale = grad_scale;
  if (found_inf.defined()) kernel_scaling.found_inf = found_inf;
  update(group, lists, kernel_scaling);
  if (!on_host && found_inf.defined() && !lists.steps.empty())
    at::_foreach_sub_(lists.steps, std::vector<at::Tensor>(lists.steps.size(), found_inf.reshape({})));

  if (lists.first_step) {
    for (const auto& param : lists.params) find_state(param)->first_step = false;
    caches_[group].entries.clear();
  }
}

void FusedOptimizer::step_rows(size_t group, at::Tensor param, const StepScaling& scaling) {
  if (gradient_layouts(group) == GradientLayouts::kDense)
    throw Error("optim",
                fmt::format("{} does not take sparse gradients with these options; got one of shape {}; valid: "
                            "{}",
                            name_, c10::str(param.sizes()), kTakesSparseGradients));
  refuse_while_recording("a step with a sparse gradient", "make the Embedding without `sparse`");
  const at::Tensor values = gradient_values(param);
  if (values.scalar_type() != param.scalar_type())
    throw Error("optim", fmt::format("a gradient has another type than its parameter; got {} for {}",
                                     c10::toString(values.scalar_type()), c10::toString(param.scalar_type())));
  ParamState& state = materialize(group, param);
  c10::List<std::optional<at::Tensor>> rows;
  for (const at::Tensor& indices : param.grad()._indices().unbind()) rows.push_back(indices);
  TensorLists lists{.params = {param.index(rows)},
                    .grads = {values},
                    .steps = {},
                    .states = {},
                    .learning_rate = recordable_ ? learning_rate_tensor(group, param.device()) : at::Tensor(),
                    .device = param.device(),
                    .dtype = param.scalar_type(),
                    .first_step = false};
  if (counts_steps()) lists.steps.push_back(state.step);
  const size_t fields = state_fields(group).size();
  for (size_t field = 0; field < fields; ++field) lists.states[field].push_back(state.values[field].index(rows));
  step_lists(group, lists, scaling);
  state.first_step = false;
  param.index_put_(rows, lists.params.front());
  for (size_t field = 0; field < fields; ++field) state.values[field].index_put_(rows, lists.states[field].front());
}

void FusedOptimizer::make_recordable() {
  if (recordable_) return;
  recordable_ = true;
  caches_.clear();
}

void FusedOptimizer::write_learning_rates() {
  c10::InferenceMode normal_mode(false);
  at::NoGradGuard no_grad;
  for (auto& rate : learning_rates_) {
    const double present = param_groups_[rate.group].options().get_lr();
    if (present == rate.written) continue;
    rate.tensor.fill_(present);
    rate.written = present;
  }
}

at::Tensor FusedOptimizer::learning_rate_tensor(size_t group, const c10::Device& device) {
  for (const auto& rate : learning_rates_)
    if (rate.group == group && rate.device == device) return rate.tensor;
  refuse_while_recording("a new group of parameters", "let the optimizer take a step before");
  const double present = param_groups_[group].options().get_lr();
  // The CPU's kernels compute with a double, those of a GPU take a float.
  const auto type = device.is_cpu() ? at::kDouble : at::kFloat;
  learning_rates_.push_back({.group = group,
                             .device = device,
                             .written = present,
                             .tensor = at::full({}, present, at::TensorOptions().dtype(type).device(device))});
  return learning_rates_.back().tensor;
}

FusedOptimizer::Snapshot FusedOptimizer::snapshot() const {
  Snapshot taken;
  for (const auto& group : param_groups_) {
    taken.options.push_back(group.options().clone());
    for (const auto& param : group.params()) {
      const ParamState* state = find_state(param);
      taken.tensors.push_back(param.unsafeGetTensorImpl());
      taken.tensors.push_back(state == nullptr ? nullptr : state->step.unsafeGetTensorImpl());
      for (size_t i = 0; i < kMaxStateFields; ++i)
        taken.tensors.push_back(state == nullptr ? nullptr : state->values[i].unsafeGetTensorImpl());
    }
  }
  return taken;
}

bool FusedOptimizer::is_unchanged(const Snapshot& since) const {
  if (since.options.size() != param_groups_.size()) return false;
  size_t next = 0;
  const auto is_next = [&](const void* tensor) {
    return next < since.tensors.size() && since.tensors[next++] == tensor;
  };
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    const auto* options = dynamic_cast<const DescribedGroupOptions*>(&param_groups_[group].options());
    if (options == nullptr || !options->equals_but_for_lr(*since.options[group])) return false;
    for (const auto& param : param_groups_[group].params()) {
      const ParamState* state = find_state(param);
      if (!is_next(param.unsafeGetTensorImpl())) return false;
      if (!is_next(state == nullptr ? nullptr : state->step.unsafeGetTensorImpl())) return false;
      for (size_t i = 0; i < kMaxStateFields; ++i)
        if (!is_next(state == nullptr ? nullptr : state->values[i].unsafeGetTensorImpl())) return false;
    }
  }
  return next == since.tensors.size();
}

void FusedOptimizer::release_gradients(size_t group, bool scaled) {
  for (auto& lists : caches_[group].lists) {
    for (size_t i = 0; i < lists.grads.size(); ++i) {
      const at::Tensor& grad = lists.params[i].unsafeGetTensorImpl()->grad();
      // The kernel leaves unscaled gradients behind; so must a gradient that reached it as a copy.
      if (scaled && !lists.grads[i].is_same(grad)) grad.copy_(lists.grads[i]);
      // A gradient that is kept here would live on through the next forward.
      lists.grads[i].reset();
    }
  }
}

State FusedOptimizer::parameter_states(const ParameterNames& names) const {
  State states = State::map();
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    const auto fields = state_fields(group);
    for (const auto& param : param_groups_[group].params()) {
      const ParamState* state = find_state(param);
      if (state == nullptr || state->first_step) continue;
      State& saved = states[names.require(param)] = State::map();
      if (counts_steps()) saved["step"] = state->step;
      for (size_t i = 0; i < fields.size(); ++i)
        if (state->values[i].defined()) saved[fields[i].name] = state->values[i];
    }
  }
  return states;
}

void FusedOptimizer::load_parameter_states(const ParameterNames& names, const State& states) {
  c10::InferenceMode normal_mode(false);
  at::NoGradGuard no_grad;
  caches_.clear();
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    const auto fields = state_fields(group);
    for (const auto& param : param_groups_[group].params()) {
      const std::string& name = names.require(param);
      const State* saved = states.find(name);
      if (saved == nullptr) {
        state_.erase(param.unsafeGetTensorImpl());
        continue;
      }
      ParamState& state = materialize(group, param);
      state.first_step = false;
      if (counts_steps()) copy_in_place(state.step, saved->at("step").as_tensor(), name + ".step");
      for (size_t i = 0; i < fields.size(); ++i)
        if (state.values[i].defined())
          copy_in_place(state.values[i], saved->at(fields[i].name).as_tensor(), name + "." + fields[i].name);
    }
  }
}

void FusedOptimizer::save(torch::serialize::OutputArchive& /*archive*/) const {
  throw Error("optim", fmt::format("{} has no archive format; save levin::optim::optimizer_state_dict", name_));
}

void FusedOptimizer::load(torch::serialize::InputArchive& /*archive*/) {
  throw Error("optim", fmt::format("{} has no archive format; use levin::optim::load_optimizer_state_dict", name_));
}

}  // namespace levin::optim
