#include "tests/support/sim_device/optimizer_kernels.h"

#include "tests/support/sim_device/kernel.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <optional>
#include <span>

namespace levin::testing::sim {
namespace {

struct SgdArguments {
  double weight_decay, momentum, dampening;
  bool nesterov, maximize, is_first_step;
};

/// Rounds after each operation.
void step_in_16_bits(const SgdArguments& by, const at::Tensor& rate, at::Tensor parameter, const at::Tensor& gradient,
                     at::Tensor buffer) {
  at::Tensor change = by.maximize ? gradient.neg() : gradient;
  if (by.weight_decay != 0) change = change.add(parameter, by.weight_decay);
  if (buffer.defined()) {
    if (by.is_first_step)
      buffer.copy_(change);
    else
      buffer.mul_(by.momentum).add_(change, 1 - by.dampening);
    change = by.nesterov ? change.add(buffer, by.momentum) : buffer;
  }
  parameter.sub_(change * rate);
}

void sgd_step(at::TensorList parameters, at::TensorList gradients, at::TensorList buffers, const SgdArguments& by,
              const at::Tensor& rate, const std::optional<at::Tensor>& scale, const std::optional<at::Tensor>& found) {
  Tensors written = parameters.vec();
  written.insert(written.end(), gradients.begin(), gradients.end());
  written.insert(written.end(), buffers.begin(), buffers.end());
  const size_t count = parameters.size();
  run_kernel("_fused_sgd_", {rate, scale.value_or(at::Tensor()), found.value_or(at::Tensor())}, written,
             [by, count](const Tensors& in) -> Tensors {
               const auto given = [&](size_t i) { return in[i].defined() ? std::optional(in[i]) : std::nullopt; };
               const std::span all = std::span(in).subspan(3);
               const auto part = [&](size_t i) {
                 const auto tensors = all.size() > i * count ? all.subspan(i * count, count) : all.subspan(all.size());
                 return at::TensorList(tensors.data(), tensors.size());
               };
               const at::TensorList parameters = part(0), gradients = part(1), buffers = part(2);
               const at::ScalarType type = parameters[0].scalar_type();
               if (type != at::kHalf && type != at::kBFloat16) {
                 at::_fused_sgd_(parameters, gradients, buffers, by.weight_decay, by.momentum, in[0].item<double>(),
                                 by.dampening, by.nesterov, by.maximize, by.is_first_step, given(1), given(2));
                 return {};
               }
               if (in[2].defined() && in[2].item<float>() != 0) return {};
               for (size_t i = 0; i < count; ++i) {
                 if (in[1].defined()) at::Tensor(gradients[i]).div_(in[1]);
                 step_in_16_bits(by, in[0], parameters[i], gradients[i], buffers.empty() ? at::Tensor() : buffers[i]);
               }
               return {};
             });
}

void sgd(at::TensorList parameters, at::TensorList gradients, at::TensorList buffers, double weight_decay,
         double momentum, double rate, double dampening, bool nesterov, bool maximize, bool is_first_step,
         const std::optional<at::Tensor>& scale, const std::optional<at::Tensor>& found) {
  sgd_step(parameters, gradients, buffers, {weight_decay, momentum, dampening, nesterov, maximize, is_first_step},
           at::scalar_tensor(rate, at::kDouble), scale, found);
}

void sgd_with_tensor_rate(at::TensorList parameters, at::TensorList gradients, at::TensorList buffers,
                          double weight_decay, double momentum, const at::Tensor& rate, double dampening, bool nesterov,
                          bool maximize, bool is_first_step, const std::optional<at::Tensor>& scale,
                          const std::optional<at::Tensor>& found) {
  sgd_step(parameters, gradients, buffers, {weight_decay, momentum, dampening, nesterov, maximize, is_first_step}, rate,
           scale, found);
}

}  // namespace

void register_optimizer_kernels(torch::Library& operators) {
  operators.impl("_fused_sgd_", sgd);
  operators.impl("_fused_sgd_.tensor_lr", sgd_with_tensor_rate);
}

}  // namespace levin::testing::sim
