#pragma once

#include <levin/core/base/mutex.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace levin {

/// Gradients of weights that backward has put off: what each needs is kept until it is computed.
class DeferredWeightGradients {
 public:
  /// Puts off the gradient of `weight`, [out, in]: gradient^T input, summed over all leading dimensions of both.
  void add(at::Tensor weight, at::Tensor input, at::Tensor gradient);
  /// Computes them and adds them to the weights' gradients.
  void run();

 private:
  struct Product {
    at::Tensor weight;
    at::Tensor input;
    at::Tensor gradient;
  };
  Mutex mutex_;  ///< backward may run on another thread
  std::vector<Product> products_ LEVIN_GUARDED_BY(mutex_);
};

/// Scope in which backward of the linear layers that this thread runs forward (torch::nn::Linear and at::linear, of a
/// weight that is a parameter) computes the gradients of their inputs and biases only, and leaves those of the weights
/// to `deferred`: the weight half of the backward that the zero-bubble schedules move (Qi et al. 2023,
/// arXiv:2401.10241). nullptr: as ever. Gradients of gradients do not pass through such layers. The first scope
/// registers kernels with LibTorch's dispatcher; threads without a scope run LibTorch's own.
class [[nodiscard]] DeferWeightsScope {
 public:
  explicit DeferWeightsScope(std::shared_ptr<DeferredWeightGradients> deferred);
  ~DeferWeightsScope();
  DeferWeightsScope(const DeferWeightsScope&) = delete;
  DeferWeightsScope& operator=(const DeferWeightsScope&) = delete;

 private:
  std::shared_ptr<DeferredWeightGradients> outer_;
};

}  // namespace levin
