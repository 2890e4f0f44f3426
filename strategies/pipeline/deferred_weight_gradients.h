#pragma once

#include <levin/core/base/mutex.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace levin {

/// Gradients of weights that backward has put off: what each needs is kept until it is computed.
class DeferredWeightGradients {
 public:
  /// Puts off the gradient of `weight`, [out, in]: gradient^T input, summed over all leading dimensions of both.
  /// `cast`: what has converted the weight to the type of `input` in forward; nullptr: nothing has.
  void add(at::Tensor weight, std::shared_ptr<torch::autograd::Node> cast, at::Tensor input, at::Tensor gradient);
  /// Number of products that are put off.
  int64_t size() const;
  /// Computes them and adds them to the weights' gradients, with the bits of an ordinary backward: those of one cast
  /// are added in its type, then those of one weight in the weight's.
  void run();

 private:
  struct Product {
    at::Tensor weight;
    std::shared_ptr<torch::autograd::Node> cast;
    at::Tensor input;
    at::Tensor gradient;
  };
  mutable Mutex mutex_;  ///< backward may run on another thread
  std::vector<Product> products_ LEVIN_GUARDED_BY(mutex_);
};

/// Scope in which backward of the linear layers that this thread runs forward (torch::nn::Linear and at::linear, of a
/// weight that is a parameter, or a parameter that autocast has converted) computes the gradients of their inputs and
/// biases only, and leaves those of the weights to `deferred`: the weight half of the backward that the zero-bubble
/// schedules move (Qi et al. 2023, arXiv:2401.10241). nullptr: nothing is deferred. A weight that has a hook when
/// backward comes to it is not deferred. Gradients of gradients do not pass through such layers. The first scope
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
