#include "tests/support/sim_device/layer_kernels.h"

#include "tests/support/sim_device/generator.h"
#include "tests/support/sim_device/kernel.h"

#include <ATen/ATen.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace levin::testing::sim {
namespace {

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  return run_kernel("convolution", {input, weight, bias.value_or(at::Tensor())}, {},
                    [stride = stride.vec(), padding = padding.vec(), dilation = dilation.vec(), transposed,
                     output_padding = output_padding.vec(), groups](const Tensors& on_cpu) -> Tensors {
                      return {at::convolution(on_cpu[0], on_cpu[1], optional(on_cpu[2]), stride, padding, dilation,
                                              transposed, output_padding, groups)};
                    })
      .front();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& gradient, const at::Tensor& input,
                                                                    const at::Tensor& weight, at::IntArrayRef stride,
                                                                    at::IntArrayRef padding, at::IntArrayRef dilation,
                                                                    bool transposed, at::IntArrayRef output_padding,
                                                                    int64_t groups, std::array<bool, 3> wanted) {
  const int64_t channels = gradient.size(1);
  Tensors made =
      run_kernel("convolution_backward", {gradient, input, weight}, {},
                 [stride = stride.vec(), padding = padding.vec(), dilation = dilation.vec(), transposed,
                  output_padding = output_padding.vec(), groups, wanted, channels](const Tensors& on_cpu) -> Tensors {
                   auto [of_input, of_weight, of_bias] =
                       at::convolution_backward(on_cpu[0], on_cpu[1], on_cpu[2], at::IntArrayRef(channels), stride,
                                                padding, dilation, transposed, output_padding, groups, wanted);
                   return {of_input, of_weight, of_bias};
                 });
  return {made[0], made[1], made[2]};
}

/// The mask's elements, 0 or 1 / (1 - p), as the CPU's dropout multiplies by.
at::Tensor as_noise(const at::Tensor& mask, at::ScalarType type, double keep) { return mask.to(type).div_(keep); }

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  const at::Tensor drawn = at::empty_like(input).bernoulli_(1 - p, DeviceGenerator::default_of(input.device().index()));
  const at::Tensor mask = drawn.to(at::kBool);
  return {input * as_noise(mask, input.scalar_type(), 1 - p), mask};
}

at::Tensor native_dropout_backward(const at::Tensor& gradient, const at::Tensor& mask, double scale) {
  return gradient * as_noise(mask, gradient.scalar_type(), scale == 0.0 ? 1.0 : 1 / scale);
}

/// Attention takes the kernel that it takes on the CPU.
int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                         std::optional<double> scale, bool shares_heads) {
  return at::_fused_sdp_choice(query, key, value, mask, dropout, is_causal, scale, shares_heads);
}

}  // namespace

void register_layer_kernels(torch::Library& operators) {
  operators.impl("convolution_overrideable", convolution);
  operators.impl("convolution_backward_overrideable", convolution_backward);
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose_attention);
  operators.impl("native_dropout", native_dropout);
  operators.impl("native_dropout_backward", native_dropout_backward);
}

}  // namespace levin::testing::sim
