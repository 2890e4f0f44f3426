#include <levin/core/nn/functional.h>

#include <levin/core/nn/kernel_scope.h>

#include <ATen/ops/max_pool2d.h>

namespace levin::nn::functional {

at::Tensor max_pool2d(const at::Tensor& input, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                      at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  const KernelScope own_kernels;
  return at::max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode);
}

}  // namespace levin::nn::functional
