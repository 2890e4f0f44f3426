#include <levin/strategies/replicas/replica_group.h>

#include <levin/core/base/error.h>
#include <levin/core/base/expanded_tensor.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/thread_generator.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/move_to_device.h>
#include <levin/core/nn/unit.h>
#include <levin/strategies/replicas/backward_bridge.h>
#include <levin/strategies/replicas/coalesced_copy.h>
#include <levin/strategies/replicas/gathered_output.h>
#include <levin/strategies/replicas/split_batch.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

namespace levin {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// A module, then its children with theirs.
void collect_submodules(torch::nn::Module& module, std::vector<torch::nn::Module*>& found) {
  found.push_back(&module);
  for (const auto& child : module.children()) collect_submodules(*child, found);
}

NamedTensors named_buffers(const Module& module) {
  std::unordered_set<const c10::TensorImpl*> parameters;
  for (const auto& [name, tensor] : named_unique_parameters(module)) parameters.insert(tensor.unsafeGetTensorImpl());
  NamedTensors buffers = named_tensors(module);
  std::erase_if(buffers, [&](const auto& item) { return parameters.contains(item.second.unsafeGetTensorImpl()); });
  return buffers;
}

std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

/// Throws unless the tensors of a module and of one built like it have the same names and shapes.
void require_alike(const NamedTensors& expected, const NamedTensors& built) {
  for (size_t i = 0; i < std::max(expected.size(), built.size()); ++i) {
    const auto describe = [i](const NamedTensors& named) {
      return i < named.size() ? fmt::format("'{}' of shape {}", named[i].first, c10::str(named[i].second.sizes()))
                              : std::string("nothing");
    };
    if (describe(expected) == describe(built)) continue;
    throw Error("data_parallel",
                fmt::format("a replica made as the module was made differs from it; got {}; valid: {}; hint: build all "
                            "layers in the constructor or in configure_model(), from the options alone",
                            describe(built), describe(expected)));
  }
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.device() == b.device() && a.scalar_type() == b.scalar_type() && a.const_data_ptr() == b.const_data_ptr() &&
         a.sizes() == b.sizes() && a.strides() == b.strides();
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

/// In its scope a module reports to another runtime.
class RuntimeScope {
 public:
  RuntimeScope(Module& module, detail::ModuleRuntime* runtime) : module_(module), previous_(module.attached_runtime()) {
    module.attach(runtime);
  }
  ~RuntimeScope() { module_.attach(previous_); }
  RuntimeScope(const RuntimeScope&) = delete;
  RuntimeScope& operator=(const RuntimeScope&) = delete;

 private:
  Module& module_;
  detail::ModuleRuntime* previous_;
};

}  // namespace

struct ReplicaGroup::Replica {
  at::Device device;
  std::shared_ptr<Module> module;
  std::vector<torch::nn::Module*> submodules;
  std::vector<NamedUnit> units;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
};

ReplicaGroup::ReplicaGroup(Module& module, std::vector<at::Device> devices)
    : module_(module),
      devices_(std::move(devices)),
      intra_op_threads_(std::max(1, at::get_num_threads() / static_cast<int>(devices_.size()))),
      parameters_(tensors_of(named_unique_parameters(module))),
      buffers_(tensors_of(named_buffers(module))),
      logs_(devices_) {
  if (!module.can_rebuild())
    throw Error("data_parallel",
                fmt::format("data parallelism on {} devices needs {} more modules like this one, but nothing remembers "
                            "how it was made; got an object of std::make_shared; valid: levin::make<T>({{...}}), or a "
                            "module that YAML names",
                            devices_.size(), devices_.size() - 1));
  collect_submodules(module, submodules_);
  units_ = named_units(module);
  {
    // Weights drawn for replicas are thrown away, and must not change what the run draws afterwards.
    const RngStateGuard rng;
    for (size_t index = 1; index < devices_.size(); ++index) build(index);
  }
  threads_ = std::make_shared<ReplicaThreads>(static_cast<int64_t>(devices_.size()), intra_op_threads_);
}

ReplicaGroup::~ReplicaGroup() = default;

void ReplicaGroup::build(size_t index) {
  auto replica = std::make_unique<Replica>(Replica{.device = devices_[index]});
  replica->module = std::dynamic_pointer_cast<Module>(module_.rebuild());
  LEVIN_CHECK(replica->module != nullptr, "a module's init options made something else");
  Module& module = *replica->module;
  module.attach(module_.attached_runtime());
  module.configure_model();
  move_to_device(module, replica->device);
  require_alike(named_unique_parameters(module_), named_unique_parameters(module));
  require_alike(named_buffers(module_), named_buffers(module));
  collect_submodules(module, replica->submodules);
  LEVIN_CHECK(replica->submodules.size() == submodules_.size(), "a replica has other submodules than the module");
  replica->units = named_units(module);
  LEVIN_CHECK(replica->units.size() == units_.size(), "a replica has other units than the module");
  replica->parameters = tensors_of(named_unique_parameters(module));
  replica->buffers = tensors_of(named_buffers(module));
  // Gradients pass through the module's own parameters, and through the hooks there.
  for (const auto& parameter : replica->parameters) torch::autograd::impl::clear_hooks(parameter);
  replicas_.push_back(std::move(replica));
}

void ReplicaGroup::take_over(Replica& replica) {
  for (size_t i = 0; i < submodules_.size(); ++i) {
    // train() sets the children too, which come later in this order and are set again.
    const bool training = submodules_[i]->is_training();
    if (replica.submodules[i]->is_training() != training) replica.submodules[i]->train(training);
  }
  for (size_t i = 0; i < units_.size(); ++i) replica.units[i].unit->share_hooks(*units_[i].unit);
  std::vector<at::Tensor> sources, targets;  // on different devices
  const auto copy = [&](const at::Tensor& from, at::Tensor& to) {
    if (!same_layout(from, to)) replace_data(to, at::empty_like(from, from.options().device(replica.device)));
    if (from.device() == replica.device) {
      copy_elements(from.detach(), to.detach());
    } else {
      sources.push_back(without_repetitions(from.detach()));
      targets.push_back(without_repetitions(to.detach()));
    }
  };
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& from = parameters_[i];
    at::Tensor& to = replica.parameters[i];
    if (from.device() != replica.device)
      copy(from, to);
    else if (!same_memory(from, to))
      to.set_data(from.detach());
    if (to.requires_grad() != from.requires_grad()) to.requires_grad_(from.requires_grad());
  }
  for (size_t i = 0; i < buffers_.size(); ++i) copy(buffers_[i], replica.buffers[i]);
  copy_coalesced(sources, targets);
}

std::vector<Batch> ReplicaGroup::scatter(const Batch& batch, BackwardBridge* bridge) {
  std::vector<Batch> parts =
      split_batch(batch, static_cast<int64_t>(devices_.size()),
                  {.component = "data_parallel",
                   .what = "strategies dp and ddp2 divide each batch among their replicas",
                   .hint = "strategy ddp, or ddp_threads, whose ranks load batches of their own"});
  for (size_t index = 1; index < parts.size(); ++index) {
    for (auto& [name, tensor] : parts[index].items()) {
      if (!tensor.defined()) continue;
      const at::Tensor outer = tensor;
      tensor = tensor.to(devices_[index], tensor.scalar_type(), /*non_blocking=*/true);
      if (bridge == nullptr || !outer.requires_grad()) continue;
      tensor = tensor.detach().requires_grad_();
      bridge->add_leaf(outer, static_cast<int64_t>(index), tensor);
    }
  }
  return parts;
}

Module& ReplicaGroup::module_of(size_t index) { return index == 0 ? module_ : *replicas_[index - 1]->module; }

StepOutput ReplicaGroup::run(const Batch& batch, const Step& step) {
  loss_share_ = 1;
  const int64_t count = std::min<int64_t>(batch.size(), static_cast<int64_t>(devices_.size()));
  if (count < 2) return step(module_, batch);

  std::optional<BackwardBridge> bridge;
  if (c10::GradMode::is_enabled()) bridge.emplace(threads_, count, devices_.front());
  detail::ModuleRuntime* origin = module_.attached_runtime();
  if (origin != nullptr) logs_.begin(*origin);
  for (int64_t index = 1; index < count; ++index) {
    Replica& replica = *replicas_[static_cast<size_t>(index - 1)];
    {
      const c10::InferenceMode ordinary(false);
      const at::NoGradGuard no_grad;
      take_over(replica);
    }
    replica.module->attach(origin == nullptr ? nullptr : &logs_.runtime(index));
    if (!bridge) continue;
    for (size_t i = 0; i < parameters_.size(); ++i)
      if (parameters_[i].requires_grad()) bridge->add_leaf(parameters_[i], index, replica.parameters[i]);
  }
  std::vector<Batch> parts = scatter(batch, bridge ? &*bridge : nullptr);

  std::vector<StepOutput> outputs(parts.size());
  {
    const RuntimeScope recorded(module_, origin == nullptr ? nullptr : &logs_.runtime(0));
    // Replicas draw from streams that follow from the module's own at each step, so that a checkpoint holds them all.
    const auto seed = bridge ? at::empty({1}, at::kLong).random_().item<int64_t>() : 0;
    threads_->run(count, [&](int64_t replica) {
      const auto index = static_cast<size_t>(replica);
      if (bridge && index > 0)
        seed_generators(devices_[index], mix_seed(static_cast<uint64_t>(seed), static_cast<uint64_t>(index)));
      const c10::DeviceGuard device(devices_[index]);
      outputs[index] = step(module_of(index), parts[index]);
    });
  }
  std::vector<int64_t> sizes;
  for (const auto& part : parts) sizes.push_back(part.size());
  for (auto& output : outputs)
    if (!output.weight().on_host() && output.weight().defined()) output.weight() = output.weight().on(devices_.front());
  if (origin != nullptr) logs_.replay(part_weights(outputs, sizes));
  if (bridge) {
    bridge->connect(outputs, devices_.front());
  } else {
    for (auto& output : outputs) {
      if (output.has_loss()) output.loss() = output.loss().to(devices_.front());
      output.outputs() = output.outputs().to(devices_.front());
    }
  }
  double with_loss = 0;
  for (size_t part = 0; part < parts.size(); ++part)
    if (outputs[part].has_loss()) with_loss += static_cast<double>(sizes[part]);
  loss_share_ =
      with_loss / std::max<double>(1, static_cast<double>(std::accumulate(sizes.begin(), sizes.end(), int64_t{0})));
  return gather_outputs(outputs, sizes);
}

}  // namespace levin
