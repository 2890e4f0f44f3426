#pragma once

#include <levin/core/base/vector_set.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace levin::optim {

/// One step of Adam or AdamW, the same for all elements of a tensor.
struct FastAdamStep {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;  ///< AdamW's weight decay; otherwise an L2 penalty
  bool maximize = false;
  double step = 1;  ///< the number of this step, from 1
};

/// Updates `count` elements with one division and one square root each, where LibTorch's kernel takes two divisions:
/// results differ from LibTorch's by rounding. The same bits on every processor. Works on the calling thread.
void fast_adam(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, int64_t count,
               const FastAdamStep& step, VectorSet vectors = vector_set());

/// The same for lists of dense float32 tensors on the CPU, as at::_fused_adam_ takes them; on LibTorch's threads. It is
/// the operator `levin::fast_adam_`, so that recorders and profilers see it. `step.step` and, where there is a `lr`,
/// `step.lr` are those of the tensors.
void fast_adam_(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
                at::TensorList steps, const FastAdamStep& step, const std::optional<at::Tensor>& lr,
                const std::optional<at::Tensor>& grad_scale, const std::optional<at::Tensor>& found_inf);

}  // namespace levin::optim
