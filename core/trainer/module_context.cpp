#include <levin/core/trainer/module_context.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>
#include <levin/core/comm/device_mesh.h>
#include <levin/core/interfaces/ranks.h>
#include <levin/core/interfaces/strategy.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace levin {

ModuleContext::ModuleContext(Trainer& trainer, const ResolvedOptions& options, TrainerState& state, DataConnector& data,
                             LoggerConnector& logger, OptimizerConnector& optimizers, TrainingStep& step)
    : trainer_(trainer),
      state_(state),
      strategy_(*options.strategy),
      data_(data),
      logger_(logger),
      optimizers_(optimizers),
      step_(step) {}

ModuleContext::~ModuleContext() { detach(); }

void ModuleContext::attach(std::shared_ptr<Module> module) {
  detach();
  state_.module = std::move(module);
  state_.module->attach(this);
}

/// Another trainer may have the module by now.
void ModuleContext::detach() {
  if (state_.module != nullptr && state_.module->attached_runtime() == this) state_.module->attach(nullptr);
}

void ModuleContext::require_free(const Module& module, std::string_view call) const {
  const auto* const other = dynamic_cast<const ModuleContext*>(module.attached_runtime());
  if (other == nullptr || other == this || other->state_.status != TrainerStatus::kRunning) return;
  throw Error("trainer", fmt::format("{} was given a module that another trainer or engine is at work with; valid: a "
                                     "module of its own, or this one after that call, or that engine's close()",
                                     call));
}

void ModuleContext::log(std::string_view name, const at::Tensor& value, const LogOptions& options) {
  logger_.log(name, value, options);
}
void ModuleContext::log(std::string_view name, double value, const LogOptions& options) {
  logger_.log(name, value, options);
}
void ModuleContext::log(std::string_view name, metrics::Metric& metric, const LogOptions& options) {
  logger_.log(name, metric, options);
}

const at::Device& ModuleContext::device() const { return strategy_.root_device(); }

void ModuleContext::manual_backward(const at::Tensor& loss, const BackwardOptions& options) {
  step_.manual_backward(loss, options);
}

void ModuleContext::clip_gradients(OptimizerHandle& optimizer, double value, ClipAlgorithm algorithm, bool in_step) {
  optimizers_.clip(optimizer, value, algorithm, in_step);
}

namespace {

at::Tensor gather(Collective& collective, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor own = tensor.detach().contiguous();
  std::vector<int64_t> shape = own.sizes().vec();
  shape.insert(shape.begin(), collective.world_size());
  at::Tensor all = at::empty(shape, own.options());
  collective.all_gather(all, own)->wait();
  return all;
}

/// What each rank made of this rank's tensor comes back to it.
class DifferentiableGather : public torch::autograd::Function<DifferentiableGather> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& tensor,
                            Collective* collective) {
    context->saved_data["collective"] = reinterpret_cast<int64_t>(collective);
    return gather(*collective, tensor);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto* const collective = reinterpret_cast<Collective*>(context->saved_data["collective"].toInt());
    const at::Tensor all = gradients[0].contiguous();
    at::Tensor own = at::empty(all.sizes().slice(1), all.options());
    collective->reduce_scatter(own.view({-1}), all.view({-1}), ReduceOp::kSum)->wait();
    return {own, {}};
  }
};

}  // namespace

at::Tensor ModuleContext::all_gather(const at::Tensor& tensor, bool sync_grads) {
  const auto gather_along = [&](Collective& group, const at::Tensor& own) {
    if (!sync_grads || !own.requires_grad() || !at::GradMode::is_enabled()) return gather(group, own);
    return DifferentiableGather::apply(own, &group);
  };
  Ranks& ranks = strategy_.ranks();
  if (ranks.mesh().size(DeviceMesh::kPipeline) == 1 && ranks.mesh().size(DeviceMesh::kTensor) == 1)
    return gather_along(strategy_.collective(), tensor);
  // Stages of a pipeline share their examples, and those before the last have placeholders of results; ranks with parts
  // of the same layers have the same results.
  const at::Tensor shards = gather_along(ranks.group(DeviceMesh::kShard), tensor);
  return gather_along(ranks.group(DeviceMesh::kReplicate), shards).flatten(0, 1);
}

void ModuleContext::use_prefetched(Batch& batch, const at::Device& device) { data_.use_prefetched(batch, device); }

}  // namespace levin
