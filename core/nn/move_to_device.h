#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace torch::nn {
class Module;
}

namespace levin {

/// Moves a module's parameters and buffers in place, as `module.to(device)`, which it also calls: LibTorch's own
/// refuses where it takes the tensors of two devices for different types, as those of a PrivateUse1 plug-in and of the
/// CPU.
void move_to_device(torch::nn::Module& module, const at::Device& device);

/// Gives a tensor other data, as `tensor.set_data(data)`, with the same exception.
void replace_data(const at::Tensor& tensor, const at::Tensor& data);

}  // namespace levin
