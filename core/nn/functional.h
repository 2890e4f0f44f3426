#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Functions as those of torch::nn::functional, over kernels of Levin's own where LibTorch's are slow. They take part
/// in autograd, and do what LibTorch does wherever their kernel does not fit: on other devices, for other types.
namespace levin::nn::functional {

/// Takes the largest element of each window, as torch::nn::functional::max_pool2d and to the same bits. An empty
/// `stride` is the kernel's size. Of contiguous float32 on CPUs, windows of 2 × 2 without padding take a twentieth of
/// LibTorch's time. Inside of a trainer with `own_kernels`, LibTorch's function and module take the same kernel.
at::Tensor max_pool2d(const at::Tensor& input, at::IntArrayRef kernel_size, at::IntArrayRef stride = {},
                      at::IntArrayRef padding = 0, at::IntArrayRef dilation = 1, bool ceil_mode = false);

/// Takes the mean cross-entropy of rows of logits against classes, as torch::nn::functional::cross_entropy with its
/// defaults; results differ by rounding. Of contiguous float32 rows of at most 16 classes on CPUs, loss and gradient
/// are one pass in place of LibTorch's four operators. Throws levin::Error or c10::Error for a class that does not
/// exist; on a GPU with levin::DebugChecks alone, without which its kernel ends the program.
at::Tensor cross_entropy(const at::Tensor& input, const at::Tensor& target, int64_t ignore_index = -100);

}  // namespace levin::nn::functional
