#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

namespace levin {

/// The arguments of aten::batch_norm and of aten::instance_norm.
struct BatchNormCall {
  at::Tensor input;
  std::optional<at::Tensor> weight;
  std::optional<at::Tensor> bias;
  std::optional<at::Tensor> running_mean;
  std::optional<at::Tensor> running_var;
  bool training = false;  ///< normalises with the statistics of the input
  double momentum = 0;
  double eps = 0;
  bool cudnn_enabled = false;
};

/// Runs the call as LibTorch does.
at::Tensor run_batch_norm(const BatchNormCall& call);
at::Tensor run_instance_norm(const BatchNormCall& call);

/// Another way to run BatchNorm. LibTorch has not checked the arguments: the runner must refuse what LibTorch refuses.
class BatchNormRunner {
 public:
  virtual ~BatchNormRunner() = default;

  /// Runs the call. `count`, unless nullptr, gets in training the elements of a channel that the statistics were taken
  /// of: a scalar on the input's device. It is left undefined where there are none.
  virtual at::Tensor run(const BatchNormCall& call, at::Tensor* count) = 0;
  virtual at::Tensor run_instance_norm(const BatchNormCall& call) { return levin::run_instance_norm(call); }
  /// Makes the runner for a forward that ran under this one and runs again in backward: after the scope, on any thread.
  virtual std::shared_ptr<BatchNormRunner> for_recompute() = 0;
};

/// Scope in which BatchNorm and InstanceNorm that this thread runs on the CPU or on CUDA go through a runner:
/// unmodified modules of torch::nn, and the functions behind them. Backward is what the runner recorded with autograd.
///
/// Scopes nest, the innermost counts; nullptr is LibTorch again. Threads without a scope get the very kernels of
/// LibTorch. The first scope of the process with a runner registers kernels with LibTorch's dispatcher, which takes one
/// an operator: whatever changes BatchNorm does so through this class.
class [[nodiscard]] BatchNormScope {
 public:
  explicit BatchNormScope(std::shared_ptr<BatchNormRunner> runner);
  ~BatchNormScope();
  BatchNormScope(const BatchNormScope&) = delete;
  BatchNormScope& operator=(const BatchNormScope&) = delete;

  /// The runner of the calling thread's innermost scope; nullptr is LibTorch.
  static const std::shared_ptr<BatchNormRunner>& current();

 private:
  std::shared_ptr<BatchNormRunner> previous_;
};

}  // namespace levin
