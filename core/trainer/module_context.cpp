#include <levin/core/trainer/module_context.h>

#include <levin/core/interfaces/strategy.h>

#include <ATen/ops/empty.h>

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

ModuleContext::~ModuleContext() {
  if (state_.module != nullptr) state_.module->attach(nullptr);
}

void ModuleContext::attach(std::shared_ptr<Module> module) {
  if (state_.module != nullptr) state_.module->attach(nullptr);
  state_.module = std::move(module);
  state_.module->attach(this);
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

at::Tensor ModuleContext::all_gather(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor own = tensor.detach().contiguous();
  std::vector<int64_t> shape = own.sizes().vec();
  shape.insert(shape.begin(), strategy_.world_size());
  at::Tensor all = at::empty(shape, own.options());
  strategy_.collective().all_gather(all, own)->wait();
  return all;
}

void ModuleContext::use_prefetched(Batch& batch, const at::Device& device) { data_.use_prefetched(batch, device); }

}  // namespace levin
