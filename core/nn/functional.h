#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Functions as those of torch::nn::functional, over kernels of Levin's own where LibTorch's are slow. They take part in
/// autograd, and do what LibTorch does wherever their kernel does not fit: on other devices, for other types.
namespace levin::nn::functional {

/// Takes the largest element of each window, as torch::nn::functional::max_pool2d and to the same bits. An empty `stride`
/// is the kernel's size. Of contiguous float32 on CPUs, windows of 2 × 2 without padding take a twentieth of LibTorch's
/// time. Inside of a trainer with `own_kernels`, LibTorch's function and module take the same kernel.
at::Tensor max_pool2d(const at::Tensor& input, at::IntArrayRef kernel_size, at::IntArrayRef stride = {},
                      at::IntArrayRef padding = 0, at::IntArrayRef dilation = 1, bool ceil_mode = false);

}  // namespace levin::nn::functional
