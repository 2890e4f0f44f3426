#include <levin/core/nn/batch_norm_scope.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/permanent_library.h>
#include <levin/core/nn/forward_context.h>

#include <ATen/ops/batch_norm_native.h>
#include <ATen/ops/instance_norm_native.h>
#include <torch/library.h>

#include <mutex>
#include <utility>

namespace levin {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

/// Only forward reads it: backward may run on another thread. A forward that runs again there finds it through its
/// ForwardContext.
thread_local std::shared_ptr<BatchNormRunner> active_runner;

at::Tensor batch_norm(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                      const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
                      double momentum, double eps, bool cudnn_enabled) {
  if (active_runner == nullptr)
    return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps,
                                  cudnn_enabled);
  const auto runner = active_runner;
  return runner->run({input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled},
                     /*count=*/nullptr);
}

at::Tensor instance_norm(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                         const OptionalTensor& running_mean, const OptionalTensor& running_var, bool use_input_stats,
                         double momentum, double eps, bool cudnn_enabled) {
  if (active_runner == nullptr)
    return at::native::instance_norm(input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps,
                                     cudnn_enabled);
  const auto runner = active_runner;
  return runner->run_instance_norm(
      {input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled});
}

/// Registered at run time, so that programs without a scope keep LibTorch's kernels; and for good, since other threads
/// may be calling them.
void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const Accelerator* accelerator : AcceleratorRegistry::instance().all()) {
      const c10::DispatchKey device = at::TensorOptions(accelerator->type()).computeDispatchKey();
      const c10::DispatchKey key = c10::getAutogradKeyFromBackend(c10::toBackendComponent(device));
      torch::Library& library = permanent_library(torch::Library::IMPL, "aten", key);
      library.impl("batch_norm", TORCH_FN(batch_norm));
      library.impl("instance_norm", TORCH_FN(instance_norm));
    }
    add_forward_context([]() -> ForwardContext {
      if (active_runner == nullptr) return nullptr;
      return [runner = active_runner->for_recompute()] { return std::make_shared<BatchNormScope>(runner); };
    });
  });
}

}  // namespace

at::Tensor run_batch_norm(const BatchNormCall& call) {
  return at::native::batch_norm(call.input, call.weight, call.bias, call.running_mean, call.running_var, call.training,
                                call.momentum, call.eps, call.cudnn_enabled);
}

at::Tensor run_instance_norm(const BatchNormCall& call) {
  // LibTorch computes it with batch_norm, each example a channel of its own.
  const BatchNormScope libtorch(nullptr);
  return at::native::instance_norm(call.input, call.weight, call.bias, call.running_mean, call.running_var,
                                   call.training, call.momentum, call.eps, call.cudnn_enabled);
}

BatchNormScope::BatchNormScope(std::shared_ptr<BatchNormRunner> runner) {
  if (runner != nullptr) install();
  previous_ = std::exchange(active_runner, std::move(runner));
}

BatchNormScope::~BatchNormScope() { active_runner = std::move(previous_); }

const std::shared_ptr<BatchNormRunner>& BatchNormScope::current() { return active_runner; }

}  // namespace levin
