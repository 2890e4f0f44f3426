#include <levin/strategies/sharded/sharded_model.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/balanced_owners.h>
#include <levin/core/nn/batch_norm.h>
#include <levin/core/nn/unit_call.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_set>

namespace levin {
namespace {

/// Reductions under way at once: the full gradients of each are held until it is done, beside those of the unit that
/// runs.
constexpr size_t kReducesInFlight = 1;

bool is_inside(std::string_view name, const std::string& path) {
  return path.empty() || (name.size() > path.size() && name.starts_with(path) && name[path.size()] == '.');
}

}  // namespace

/// A parameter with every name that it has in a module.
struct ShardedModel::Found {
  at::Tensor parameter;
  std::vector<std::string> names;
};

/// In the module's order, each once.
std::vector<ShardedModel::Found> ShardedModel::all_parameters(const torch::nn::Module& module) {
  std::vector<Found> found;
  std::map<const void*, size_t> index;
  const auto add_own = [&](const torch::nn::Module& of, const std::string& prefix) {
    for (const auto& item : of.named_parameters(/*recurse=*/false)) {
      const auto [at, is_new] = index.emplace(item.value().unsafeGetTensorImpl(), found.size());
      if (is_new) found.push_back({item.value(), {}});
      found[at->second].names.push_back(prefix + item.key());
    }
  };
  add_own(module, "");
  for (const auto& submodule : module.named_modules(/*name_prefix=*/"", /*include_self=*/false))
    add_own(*submodule.value(), submodule.key() + ".");
  return found;
}

/// Tells the model of a parameter's gradient.
class ShardedModel::TakeGradient final : public torch::autograd::PostAccumulateGradHook {
 public:
  TakeGradient(ShardedModel& model, size_t group, size_t parameter)
      : model_(model), group_(group), parameter_(parameter) {}
  void operator()(const torch::autograd::Variable& /*parameter*/) override { model_.on_gradient(group_, parameter_); }

 private:
  ShardedModel& model_;
  size_t group_;
  size_t parameter_;
};

/// A tensor that an operation saved for backward.
class ShardedModel::SavedTensor final : public torch::autograd::SavedVariableHooks {
 public:
  explicit SavedTensor(const ShardedModel& model) : model_(model.self_) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = tensor;
    if (!tensor.has_storage()) return;
    const auto& groups = (*model_)->of_storage_;
    if (const auto found = groups.find(tensor.storage().unsafeGetStorageImpl()); found != groups.end())
      group_ = found->second;
    // Inference tensors have none.
    else if (!tensor.is_inference())
      version_ = tensor._version();
  }

  at::Tensor call_unpack_hook() override {
    if (group_ && *model_ != nullptr) (*model_)->gather_saved(*group_);
    // As autograd itself does without hooks.
    if (version_ && tensor_._version() != *version_)
      throw Error("sharded",
                  fmt::format("a tensor of shape {} that backward needs was modified by an inplace operation: it is at "
                              "version {}, expected version {}; hint: use the operation that is not in place",
                              c10::str(tensor_.sizes()), tensor_._version(), *version_));
    return tensor_;
  }

 private:
  std::shared_ptr<ShardedModel*> model_;
  at::Tensor tensor_;
  std::optional<size_t> group_;
  std::optional<uint32_t> version_;
};

class ShardedModel::SavedTensors final : public SavedTensorScope {
 public:
  explicit SavedTensors(const ShardedModel& model) : model_(model) {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_keeper() override {
    return std::make_unique<SavedTensor>(model_);
  }

 private:
  const ShardedModel& model_;
};

ShardedModel::ShardedModel(torch::nn::Module& module, std::shared_ptr<Collective> group,
                           std::shared_ptr<Collective> replicas, ShardedModelOptions options,
                           std::vector<ShardedBuild::Part> built)
    : group_(std::move(group)),
      replicas_(std::move(replicas)),
      options_(std::move(options)),
      forward_order_(*group_, [this](int64_t unit) { return group_name(unit); }),
      other_order_(*group_, [this](int64_t unit) { return group_name(unit); }),
      backward_order_(*group_, [this](int64_t unit) { return group_name(unit); }) {
  divide(module, std::move(built));
  for (size_t i = 0; i < groups_.size(); ++i) {
    const auto& parameters = groups_[i]->parameters();
    for (size_t j = 0; j < parameters.size(); ++j) {
      const at::Tensor& parameter = parameters[j].second;
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<TakeGradient>(*this, i, j));
      hooked_.push_back(parameter);
    }
  }
  for (const auto& [unit, index] : of_unit_) {
    const_cast<Unit*>(unit)->add_hook(*this);
    of_storage_[groups_[index]->storage()] = index;
  }
  ready_.resize(groups_.size());
  for (const auto& part : groups_) used_.emplace_back(part->parameters().size());
}

ShardedModel::~ShardedModel() {
  *self_ = nullptr;
  for (const auto& [unit, index] : of_unit_) const_cast<Unit*>(unit)->remove_hook(*this);
  for (const auto& parameter : hooked_) torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
}

void ShardedModel::divide_by_tensor() {
  if (by_tensor_) return;
  by_tensor_ = true;
  std::vector<int64_t> sizes;
  for (const auto& group : groups_)
    for (const auto& [name, parameter] : group->parameters()) sizes.push_back(parameter.numel());
  const std::vector<int64_t> owners = balanced_owners(sizes, group_->world_size());
  auto owner = owners.begin();
  for (const auto& group : groups_) {
    const auto end = owner + std::ssize(group->parameters());
    group->divide_by_tensor({owner, end});
    owner = end;
  }
  of_storage_.clear();
  for (const auto& [unit, index] : of_unit_) of_storage_[groups_[index]->storage()] = index;
}

std::string ShardedModel::group_name(int64_t group) const { return groups_[static_cast<size_t>(group)]->name(); }

ShardingOptions ShardedModelOptions::sharding(at::ScalarType optimizer_type, bool computes) const {
  const at::ScalarType type = computes ? compute_type.value_or(optimizer_type) : optimizer_type;
  return {.keeps_parameters = stage < 3,
          .keeps_gradients = stage == 1,
          .type = type,
          .reduce_type = reduce_type.value_or(type),
          .offload = offload};
}

/// What was divided while it was built, under the names that it has now.
void ShardedModel::adopt(torch::nn::Module& module, std::vector<ShardedBuild::Part> built,
                         const std::vector<Found>& found) {
  std::map<const void*, const Found*> by_parameter;
  for (const Found& item : found) by_parameter[item.parameter.unsafeGetTensorImpl()] = &item;
  const std::vector<NamedUnit> units = named_units(module);
  for (auto& part : built) {
    const auto unit =
        std::find_if(units.begin(), units.end(), [&](const auto& named) { return named.unit == part.unit; });
    // A unit that was built and thrown away, or is none of the module's.
    if (unit == units.end()) continue;
    bool is_shared = false;
    for (const auto& [unnamed, parameter] : part.parameters->parameters())
      for (const std::string& name : by_parameter.at(parameter.unsafeGetTensorImpl())->names)
        is_shared |= !is_inside(name, unit->path);
    part.parameters->rename(unit->path, [&](const at::Tensor& parameter) {
      return by_parameter.at(parameter.unsafeGetTensorImpl())->names.front();
    });
    if (is_shared)
      always_whole_.push_back(groups_.size());
    else
      of_unit_.emplace(part.unit, groups_.size());
    groups_.push_back(std::move(part.parameters));
  }
}

/// Which parameters lie together, in the order in which backward probably reaches them last.
void ShardedModel::divide(torch::nn::Module& module, std::vector<ShardedBuild::Part> built) {
  std::vector<Found> found = all_parameters(module);
  adopt(module, std::move(built), found);
  std::set<const void*> adopted;
  for (const auto& group : groups_)
    for (const auto& [name, parameter] : group->parameters()) adopted.insert(parameter.unsafeGetTensorImpl());
  std::erase_if(found, [&](const Found& item) {
    const void* const parameter = item.parameter.unsafeGetTensorImpl();
    return adopted.contains(parameter) || (options_.parameters && !options_.parameters->contains(parameter));
  });
  std::vector<NamedUnit> units = options_.stage == 3 ? options_.units : std::vector<NamedUnit>();
  // The innermost unit around each parameter; -1 for none, and for a parameter that several units share.
  const auto owner = [&](const Found& item) -> int64_t {
    std::optional<int64_t> common;
    for (const std::string& name : item.names) {
      int64_t innermost = -1;
      for (size_t i = 0; i < units.size(); ++i)
        if (is_inside(name, units[i].path) &&
            (innermost < 0 || units[i].path.size() >= units[static_cast<size_t>(innermost)].path.size()))
          innermost = static_cast<int64_t>(i);
      if (common && *common != innermost) return -1;
      common = innermost;
    }
    return common.value_or(-1);
  };
  // Small units go with those around them, from the innermost on.
  for (size_t i = units.size(); i-- > 0;) {
    int64_t elements = 0;
    for (const Found& item : found)
      if (owner(item) == static_cast<int64_t>(i)) elements += item.parameter.numel();
    if (elements == 0 || elements < options_.min_elements) units.erase(units.begin() + static_cast<std::ptrdiff_t>(i));
  }

  // Of one unit (or none), type and device; stages 1 and 2: of about one bucket's bytes.
  struct Key {
    int64_t unit;
    at::ScalarType type;
    bool computes;
    at::Device device;
    bool operator==(const Key&) const = default;
  };
  const auto of_batch_norms = batch_norm_parameters(module);
  std::vector<std::pair<Key, std::vector<FlatParameterGroup::NamedParameter>>> lists;
  for (const Found& item : found) {
    const Key key{.unit = owner(item),
                  .type = item.parameter.scalar_type(),
                  .computes = !options_.compute_type || !of_batch_norms.contains(item.parameter.unsafeGetTensorImpl()),
                  .device = item.parameter.device()};
    const auto fits = [&](const auto& list) {
      if (list.first != key) return false;
      if (options_.stage == 3) return true;
      int64_t bytes = 0;
      for (const auto& [name, parameter] : list.second) bytes += static_cast<int64_t>(parameter.nbytes());
      return bytes < options_.bucket_bytes;
    };
    // The newest list is the one that is not full yet.
    const auto list = std::find_if(lists.rbegin(), lists.rend(), fits);
    if (list == lists.rend())
      lists.push_back({key, {{item.names.front(), item.parameter}}});
    else
      list->second.emplace_back(item.names.front(), item.parameter);
  }

  for (auto& [key, list] : lists) {
    const bool in_unit = key.unit >= 0;
    const std::string name = in_unit ? units[static_cast<size_t>(key.unit)].path : list.front().first;
    const size_t index = groups_.size();
    groups_.push_back(std::make_unique<FlatParameterGroup>(name, std::move(list), group_, replicas_,
                                                           options_.sharding(key.type, key.computes)));
    if (options_.stage < 3) continue;
    // A second type within a unit is rare enough to be whole all the time.
    if (in_unit && of_unit_.emplace(units[static_cast<size_t>(key.unit)].unit, index).second) continue;
    always_whole_.push_back(index);
  }
  // Backward meets the last units first, and what is outside of units at its end.
  for (size_t i = groups_.size(); i-- > 0;)
    if (std::find(always_whole_.begin(), always_whole_.end(), i) == always_whole_.end()) reduce_order_.push_back(i);
  for (const size_t i : always_whole_) reduce_order_.push_back(i);
}

// ---- A step

void ShardedModel::begin_forward(bool training) {
  pass_ = Pass::kForward;
  training_ = training;
  order_is_new_ = !of_unit_.empty() && !order().expected_first();
  units_called_ = 0;
  order().begin();
  if (options_.stage < 3) {
    for (const auto& group : groups_) group->finish_unshard();
    return;
  }
  for (const size_t group : always_whole_) groups_[group]->start_unshard();
  if (const auto first = order().expected_first(); first && options_.prefetch > 0) groups_[*first]->start_unshard();
  for (const size_t group : always_whole_) groups_[group]->finish_unshard();
}

void ShardedModel::end_forward() {
  pass_ = Pass::kNone;
  for (const auto& group : groups_) group->reshard();
}

void ShardedModel::before_forward(UnitCall& call) {
  const size_t group = of_unit_.at(call.unit());
  if (pass_ == Pass::kNone) return groups_[group]->finish_unshard();
  if (pass_ == Pass::kForward) ++units_called_;
  unshard(group);
}

void ShardedModel::unshard(size_t group) {
  ExecutionOrder& agreed = order();
  const auto number = static_cast<int64_t>(group);
  agreed.next(number);
  start_unshard(group);
  groups_[group]->finish_unshard();
  std::optional<int64_t> ahead = number;
  for (int64_t i = 0; i < options_.prefetch; ++i) {
    ahead = agreed.expected_after(*ahead);
    if (!ahead) break;
    start_unshard(static_cast<size_t>(*ahead));
  }
}

void ShardedModel::start_unshard(size_t group) {
  if (pass_ == Pass::kBackward && !groups_[group]->is_unsharded()) new_events_.push_back({Event::Kind::kGather, group});
  groups_[group]->start_unshard();
}

void ShardedModel::reshard(size_t group) {
  if (pass_ == Pass::kBackward) new_events_.push_back({Event::Kind::kRelease, group});
  groups_[group]->reshard();
}

void ShardedModel::after_forward(UnitCall& call) {
  const size_t group = of_unit_.at(call.unit());
  // A repetition in backward: what it needs is needed until the gradients are there.
  if (pass_ == Pass::kBackward) return;
  if (pass_ == Pass::kNone) {
    if (!is_held(group)) groups_[group]->reshard();
    return;
  }
  const bool has_backward = training_ && at::GradMode::is_enabled();
  if (has_backward)
    call.for_each_result([this, group](at::Tensor& result) {
      if (result.defined() && result.requires_grad())
        result.register_hook([this, group](const at::Tensor& /*gradient*/) { gather_for_backward(group); });
    });
  // Backward begins with the unit that forward ends with.
  const bool is_last =
      has_backward && !order().expected_after(static_cast<int64_t>(group)) && order().expected_first().has_value();
  if (!is_last) groups_[group]->reshard();
}

bool ShardedModel::reduces(bool sync) const { return sync || (options_.stage > 1 && !options_.keeps_window_gradients); }

bool ShardedModel::backward_is_collective(bool sync) const { return options_.stage == 3 || reduces(sync); }

void ShardedModel::begin_backward(bool sync) {
  pass_ = Pass::kBackward;
  reduces_ = reduces(sync);
  backward_order_.begin();
  new_events_.clear();
  held_back_.clear();
  std::fill(ready_.begin(), ready_.end(), false);
  next_reduce_ = 0;
  for (const size_t group : always_whole_) groups_[group]->finish_unshard();
  if (!options_.finds_unused) return;
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i]->begins_window()) used_[i].assign(used_[i].size(), false);
    // A checkpoint may have brought gradients of a window under way.
    for (size_t parameter = 0; parameter < used_[i].size(); ++parameter)
      if (groups_[i]->local_shards()[parameter].grad().defined()) used_[i][parameter] = true;
  }
}

void ShardedModel::gather_for_backward(size_t group) {
  if (pass_ != Pass::kBackward) return;
  release_held_back(group);
  unshard(group);
}

/// A unit's result has its gradient: what computed with it is over.
void ShardedModel::release_held_back(size_t but_for) {
  std::erase_if(held_back_, [&](size_t group) {
    if (group == but_for) return false;
    reshard(group);
    return true;
  });
}

void ShardedModel::gather_saved(size_t group) {
  if (groups_[group]->is_ready()) return;
  if (pass_ == Pass::kBackward)
    unshard(group);
  else
    groups_[group]->finish_unshard();  // gradients that a step or a hook asks for by itself
}

std::unique_ptr<SavedTensorScope> ShardedModel::saved_tensor_scope() {
  if (of_storage_.empty() || SavedTensorScope::current() != nullptr) return nullptr;
  return std::make_unique<SavedTensors>(*this);
}

std::shared_ptr<void> ShardedModel::full_parameters(const torch::nn::Module& module) {
  if (options_.stage < 3) return nullptr;
  std::set<const void*> meant;
  for (const at::Tensor& parameter : module.parameters()) meant.insert(parameter.unsafeGetTensorImpl());
  std::vector<size_t> gathered;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const auto& parameters = groups_[i]->parameters();
    const bool is_meant = std::any_of(parameters.begin(), parameters.end(), [&](const auto& item) {
      return meant.contains(item.second.unsafeGetTensorImpl());
    });
    if (!is_meant) continue;
    groups_[i]->start_unshard();
    gathered.push_back(i);
    held_.insert(i);
  }
  for (const size_t group : gathered) groups_[group]->finish_unshard();
  return std::shared_ptr<void>(nullptr, [model = self_, gathered](void*) {
    if (*model == nullptr) return;
    ShardedModel& self = **model;
    for (const size_t group : gathered) {
      self.held_.erase(self.held_.find(group));
      if (self.pass_ == Pass::kNone && !self.is_held(group)) self.groups_[group]->reshard();
    }
  });
}

void ShardedModel::take_changes() {
  for (const auto& group : groups_) group->take_changes();
}

void ShardedModel::on_gradient(size_t group, size_t parameter) {
  if (pass_ != Pass::kBackward) {
    const auto& [name, tensor] = groups_[group]->parameters()[parameter];
    at::Tensor(tensor).mutable_grad().reset();
    throw Error("sharded",
                fmt::format("the parameter '{}' got a gradient outside of the step's backward, which would "
                            "be lost; hint: return the loss from training_step, or call manual_backward(loss) "
                            "in manual optimization",
                            name));
  }
  used_[group][parameter] = true;
  if (!groups_[group]->take_gradient(parameter)) return;
  ready_[group] = true;
  const auto& parameters = groups_[group]->parameters();
  if (std::all_of(parameters.begin(), parameters.end(), [](const auto& item) { return item.second.requires_grad(); }))
    reshard(group);
  else
    held_back_.push_back(group);
  start_reduces();
}

/// In the same order on every rank, whatever the order in which they become ready.
void ShardedModel::start_reduces() {
  if (!reduces_) return;
  while (next_reduce_ < reduce_order_.size() && ready_[reduce_order_[next_reduce_]]) {
    finish_reduces(kReducesInFlight - 1);
    const size_t group = reduce_order_[next_reduce_++];
    new_events_.push_back({Event::Kind::kReduce, group});
    groups_[group]->start_reduce();
    reducing_.push_back(group);
  }
}

void ShardedModel::finish_reduces(size_t left) {
  while (reducing_.size() > left) {
    groups_[reducing_.front()]->finish_reduce();
    reducing_.pop_front();
  }
}

/// One flag for each parameter over all ranks, replicas included.
void ShardedModel::drop_unused() {
  std::vector<uint8_t> flags;
  for (const auto& of_group : used_) flags.insert(flags.end(), of_group.begin(), of_group.end());
  const at::Tensor used = at::tensor(flags, at::kByte);
  group_->all_reduce(used, ReduceOp::kMax)->wait();
  if (replicas_ != nullptr) replicas_->all_reduce(used, ReduceOp::kMax)->wait();
  const uint8_t* is_used = used.const_data_ptr<uint8_t>();
  for (const auto& group : groups_)
    for (size_t i = 0; i < group->parameters().size(); ++i)
      if (*is_used++ == 0) group->drop_gradient(i);
}

bool ShardedModel::has_kept_gradients() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const auto& group) { return group->has_kept_gradients(); });
}

void ShardedModel::drop_kept_gradients(const std::vector<at::Tensor>& but_of) {
  std::unordered_set<const c10::TensorImpl*> kept;
  for (const at::Tensor& shard : but_of) kept.insert(shard.unsafeGetTensorImpl());
  for (const auto& group : groups_)
    for (size_t i = 0; i < group->parameters().size(); ++i)
      if (!kept.contains(group->local_shards()[i].unsafeGetTensorImpl())) group->drop_kept_gradient(i);
}

void ShardedModel::reduce_kept_gradients() {
  begin_backward(/*sync=*/true);
  pass_ = Pass::kNone;
  reduce_gradients();
}

void ShardedModel::reduce_gradients() {
  std::fill(ready_.begin(), ready_.end(), true);
  start_reduces();
  finish_reduces(0);
  for (const auto& group : groups_) group->wait_for_device();
  if (reduces_ && options_.finds_unused) drop_unused();
}

void ShardedModel::end_backward(bool in_step) {
  reduce_gradients();
  if (!reduces_)
    for (const auto& group : groups_) group->keep_gradients();
  if (!order_is_new_) newest_step() = {.units_called = units_called_, .events = std::move(new_events_)};
  end_forward();
  if (!in_step) return;
  pass_ = Pass::kForward;
  for (const size_t group : always_whole_) groups_[group]->finish_unshard();
}

void ShardedModel::backward_without_loss() {
  constexpr const char* kHint =
      "hint: return a loss that is a number for every batch, with .weight = 0 where there is nothing to learn from";
  const WholeStep others = newest_step().value_or(WholeStep());
  if (!of_unit_.empty() && !newest_step())
    throw Error("sharded", fmt::format("this rank skipped one of the first batches, and does not know yet what the "
                                       "others do in backward; {}",
                                       kHint));
  if (units_called_ != others.units_called)
    throw Error("sharded", fmt::format("this rank skipped a batch after {} of {} units, whose parameters the others "
                                       "wait for; {}",
                                       units_called_, others.units_called, kHint));
  for (const Event& event : others.events) {
    switch (event.kind) {
      case Event::Kind::kGather:
        start_unshard(event.group);
        break;
      case Event::Kind::kRelease:
        reshard(event.group);
        break;
      case Event::Kind::kReduce:
        ready_[event.group] = true;
        start_reduces();
        break;
    }
  }
  end_backward();
}

void ShardedModel::abandon() noexcept {
  pass_ = Pass::kNone;
  reducing_.clear();
  for (const auto& group : groups_) group->abandon();
}

void ShardedModel::prepare_step() {
  take_changes();
  for (const auto& group : groups_) group->widen_gradients();
}

void ShardedModel::finish_step() {
  const bool again = pass_ != Pass::kNone;  // manual optimization steps inside of a step
  for (const auto& group : groups_) {
    group->narrow_gradients();
    group->local_shards_changed();
    if (options_.stage < 3) group->start_unshard();
  }
  if (options_.stage < 3) {
    // Hooks may read the parameters, and write to them.
    for (const auto& group : groups_) group->finish_unshard();
  } else if (again) {
    for (const size_t group : always_whole_) groups_[group]->finish_unshard();
  }
}

// ---- What optimizers and checkpoints see

std::vector<ParallelModel::Entry> ShardedModel::entries() const {
  std::vector<ParallelModel::Entry> entries;
  for (const auto& group : groups_) {
    for (size_t i = 0; i < group->parameters().size(); ++i) {
      const auto& [name, parameter] = group->parameters()[i];
      entries.push_back(
          {name, parameter,
           ParameterPart(group->local_shards()[i], group->local_shard(i).in_parameter, parameter.sizes().vec())});
    }
  }
  return entries;
}

void ShardedModel::gather_full_parameters() {
  for (const auto& group : groups_) group->gather_full_parameters();
}

}  // namespace levin
