#include <levin/core/interfaces/module.h>

#include <levin/core/base/error.h>
#include <levin/core/base/wildcard.h>
#include <levin/core/metrics/metric.h>
#include <levin/core/metrics/metric_collection.h>
#include <levin/core/nn/adapters.h>
#include <levin/core/optim/scheduler.h>

#include <c10/core/Scalar.h>
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

namespace levin {
namespace {

[[noreturn]] void not_overridden(const Module& module, const char* method) {
  throw Error("module",
              fmt::format("{} does not override {}(); hint: the trainer was asked for something that needs it",
                          module.name(), method));
}

enum class Buffers { kNone, kPersistent, kAll };

/// Children before their siblings, each tensor once, under its first dotted name.
class TensorCollection {
 public:
  explicit TensorCollection(Buffers buffers) : buffers_(buffers) {}

  std::vector<std::pair<std::string, at::Tensor>> of(const torch::nn::Module& module) {
    if (buffers_ == Buffers::kPersistent)
      for (const at::Tensor& parameter : parameters_left_out(module)) seen_.insert(parameter.unsafeGetTensorImpl());
    add(module, "");
    return std::move(found_);
  }

 private:
  void add(const torch::nn::Module& module, const std::string& prefix) {
    if (const auto* own = dynamic_cast<const Module*>(&module); own != nullptr && buffers_ == Buffers::kPersistent)
      for (const std::string& pattern : own->non_persistent_buffers()) left_out_.push_back(prefix + pattern);
    for (const auto& item : module.named_parameters(/*recurse=*/false)) add(prefix + item.key(), item.value());
    if (buffers_ != Buffers::kNone)
      for (const auto& item : module.named_buffers(/*recurse=*/false))
        if (const std::string name = prefix + item.key(); !is_left_out(name)) add(name, item.value());
    for (const auto& child : module.named_children()) add(*child.value(), prefix + child.key() + ".");
  }

  void add(const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined() && seen_.insert(tensor.unsafeGetTensorImpl()).second) found_.emplace_back(name, tensor);
  }

  bool is_left_out(const std::string& name) const {
    return std::any_of(left_out_.begin(), left_out_.end(),
                       [&](const std::string& pattern) { return matches_wildcard(pattern, name); });
  }

  const Buffers buffers_;
  std::vector<std::string> left_out_;  ///< patterns of whole names
  std::unordered_set<const c10::TensorImpl*> seen_;
  std::vector<std::pair<std::string, at::Tensor>> found_;
};

}  // namespace

Module::Module() = default;

StepOutput Module::training_step(const Batch&, int64_t) { not_overridden(*this, "training_step"); }
StepOutput Module::validation_step(const Batch&, int64_t) { not_overridden(*this, "validation_step"); }
StepOutput Module::test_step(const Batch&, int64_t) { not_overridden(*this, "test_step"); }
Batch Module::predict_step(const Batch&, int64_t) { not_overridden(*this, "predict_step"); }
OptimizerConfigs Module::configure_optimizers() { return configured_optimizers(); }

Batch Module::transfer_batch_to_device(Batch batch, const at::Device& device, int64_t) {
  if (runtime_ != nullptr) runtime_->use_prefetched(batch, device);
  for (const auto& [name, tensor] : batch.items())
    if (tensor.defined() && tensor.device() != device) return batch.to(device, /*non_blocking=*/true);
  return batch;
}

void Module::optimizer_step(int64_t, int64_t, OptimizerHandle& optimizer, const OptimizerHandle::Closure& closure) {
  optimizer.step(closure);
}

void Module::configure_gradient_clipping(OptimizerHandle& optimizer, double value, ClipAlgorithm algorithm) {
  runtime("configure_gradient_clipping()").clip_gradients(optimizer, value, algorithm, /*in_step=*/true);
}

void Module::lr_scheduler_step(optim::Scheduler& scheduler, std::optional<double> metric) {
  if (metric)
    scheduler.step(*metric);
  else
    scheduler.step();
}

detail::ModuleRuntime& Module::runtime(const char* call) const {
  if (runtime_ == nullptr)
    throw Error("module",
                fmt::format("{} was called while no trainer runs the module; hint: call it from a step or a hook "
                            "during fit, validate, test or predict",
                            call));
  return *runtime_;
}

void Module::log(std::string_view name, const at::Tensor& value, const LogOptions& options) {
  runtime("log()").log(name, value, options);
}
void Module::log(std::string_view name, double value, const LogOptions& options) {
  runtime("log()").log(name, value, options);
}
void Module::log(std::string_view name, const at::Scalar& value, const LogOptions& options) {
  runtime("log()").log(name, value.toDouble(), options);
}
void Module::log(std::string_view name, metrics::Metric& metric, const LogOptions& options) {
  runtime("log()").log(name, metric, options);
}
void Module::log_dict(const std::map<std::string, at::Tensor>& values, const LogOptions& options) {
  for (const auto& [name, value] : values) log(name, value, options);
}

void Module::log_dict(metrics::MetricCollection& collection, const LogOptions& options) {
  collection.visit([&](const std::string& name, metrics::Metric& metric) { log(name, metric, options); });
}

Trainer& Module::trainer() const { return runtime("trainer()").trainer(); }

OptimizerConfigs Module::configured_optimizers() const {
  return runtime("configured_optimizers()").configured_optimizers();
}

at::Device Module::device() const { return runtime_ == nullptr ? at::Device(at::kCPU) : runtime_->device(); }

int64_t Module::dataloader_idx() const { return runtime("dataloader_idx()").dataloader_idx(); }

OptimizerHandle& Module::optimizer(int64_t index) const {
  auto& all = runtime("optimizer()").optimizers();
  if (index < 0 || index >= static_cast<int64_t>(all.size()))
    throw Error("module", fmt::format("there is no optimizer({}); {}", index,
                                      all.empty() ? "valid: from on_fit_start on, in training with configure_optimizers"
                                                  : fmt::format("got {} from configure_optimizers; valid: 0 to {}",
                                                                all.size(), all.size() - 1)));
  return *all[static_cast<size_t>(index)];
}

const std::vector<OptimizerHandle*>& Module::optimizers() const { return runtime("optimizers()").optimizers(); }

void Module::manual_backward(const at::Tensor& loss, const BackwardOptions& options) {
  if (automatic_optimization)
    throw Error("module",
                "manual_backward() is for manual optimization; hint: set automatic_optimization = false in the "
                "module's constructor");
  BackwardOptions effective = options;
  effective.sync_grad = options.sync_grad && toggled_sync_grad_;
  runtime("manual_backward()").manual_backward(loss, effective);
}

void Module::clip_gradients(OptimizerHandle& optimizer, double value, ClipAlgorithm algorithm) {
  runtime("clip_gradients()").clip_gradients(optimizer, value, algorithm, /*in_step=*/false);
}

at::Tensor Module::all_gather(const at::Tensor& tensor, bool sync_grads) const {
  return runtime("all_gather()").all_gather(tensor, sync_grads);
}

void Module::freeze() { levin::freeze(*this); }
void Module::unfreeze() { levin::unfreeze(*this); }

void freeze(torch::nn::Module& module) {
  for (auto& parameter : module.parameters()) parameter.set_requires_grad(false);
  module.eval();
}

void unfreeze(torch::nn::Module& module) {
  for (auto& parameter : module.parameters()) parameter.set_requires_grad(true);
  module.train();
}

optim::Scheduler& Module::scheduler(int64_t optimizer_index) const {
  const auto& all = optimizer(optimizer_index).schedulers();
  if (all.empty())
    throw Error("module", fmt::format("optimizer({}) has no scheduler; hint: give it one in configure_optimizers, "
                                      "with OptimizerConfig.scheduler",
                                      optimizer_index));
  return *all.front();
}

std::vector<optim::Scheduler*> Module::schedulers() const {
  std::vector<optim::Scheduler*> all;
  for (const OptimizerHandle* handle : optimizers())
    all.insert(all.end(), handle->schedulers().begin(), handle->schedulers().end());
  return all;
}

Module::ToggleGuard Module::toggle_optimizer(OptimizerHandle& optimizer, const ToggleOptions& options) {
  const auto& all = runtime("toggle_optimizer()").optimizers();
  for (const OptimizerHandle* other : all)
    if (other->is_toggled())
      throw Error("module", fmt::format("optimizer({}) cannot be toggled while optimizer({}) is; hint: end the scope "
                                        "of its guard first, or call untoggle_optimizer()",
                                        optimizer.index(), other->index()));
  optimizer.toggle(all);
  toggled_sync_grad_ = options.sync_grad;
  return {*this, optimizer};
}

void Module::untoggle_optimizer(OptimizerHandle& optimizer) {
  if (!optimizer.is_toggled()) return;
  optimizer.untoggle();
  toggled_sync_grad_ = true;
}

std::vector<std::pair<std::string, at::Tensor>> named_tensors(const torch::nn::Module& module) {
  return TensorCollection(Buffers::kAll).of(module);
}

std::vector<std::pair<std::string, at::Tensor>> saved_tensors(const torch::nn::Module& module) {
  return TensorCollection(Buffers::kPersistent).of(module);
}

std::vector<std::pair<std::string, at::Tensor>> named_unique_parameters(const torch::nn::Module& module) {
  return TensorCollection(Buffers::kNone).of(module);
}

}  // namespace levin
