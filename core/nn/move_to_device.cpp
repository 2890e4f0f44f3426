#include <levin/core/nn/move_to_device.h>

#include <levin/core/nn/weight_behaviour.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

namespace levin {

void replace_data(const at::Tensor& tensor, const at::Tensor& data) {
  c10::TensorImpl* const own = tensor.unsafeGetTensorImpl();
  if (own->has_compatible_shallow_copy_type(data.key_set())) return tensor.set_data(data);
  own->shallow_copy_from(data.getIntrusivePtr());
  // Backward would else take the next gradient for one of the device before.
  if (torch::autograd::impl::get_autograd_meta(tensor) != nullptr)
    torch::autograd::impl::set_grad_accumulator(tensor, {});
}

void move_to_device(torch::nn::Module& module, const at::Device& device) {
  const at::NoGradGuard no_grad;
  const auto move = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.device() != device)
      replace_data(tensor, with_behaviours_of(tensor, tensor.detach().to(device)));
  };
  for (const at::Tensor& parameter : module.parameters()) move(parameter);
  for (const at::Tensor& buffer : module.buffers()) move(buffer);
  // Modules that have more to move override it.
  module.to(device);
}

}  // namespace levin
