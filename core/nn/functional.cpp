#include <levin/core/nn/functional.h>

#include <levin/core/base/debug_checks.h>
#include <levin/core/nn/few_class_cross_entropy.h>
#include <levin/core/nn/kernel_scope.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/max_pool2d.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace levin::nn::functional {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

at::Tensor libtorchs_cross_entropy(const at::Tensor& input, const at::Tensor& target, int64_t ignore_index) {
  return at::cross_entropy_loss(input, target, /*weight=*/{}, at::Reduction::Mean, ignore_index);
}

struct FewClassCrossEntropy : torch::autograd::Function<FewClassCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& target,
                            int64_t ignore_index) {
    auto [loss, gradient] = few_class_cross_entropy(input, target, ignore_index);
    context->save_for_backward({input, target, gradient});
    context->saved_data["ignore_index"] = ignore_index;
    return loss;
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    at::Tensor result;
    if (at::GradMode::is_enabled()) {  // The gradient takes part in another loss.
      const auto loss = libtorchs_cross_entropy(saved[0], saved[1], context->saved_data["ignore_index"].toInt());
      result = torch::autograd::grad({loss}, {saved[0]}, {gradients[0]}, /*retain_graph=*/true,
                                     /*create_graph=*/true)[0];
    } else {
      result = saved[2].mul(gradients[0]);
    }
    return {result, at::Tensor(), at::Tensor()};
  }
};

/// The kernel of a GPU ends with an assertion for a class that does not exist, after which the device is of no use.
void check_classes(const at::Tensor& input, const at::Tensor& target, int64_t ignore_index) {
  if (input.dim() == 0 || !at::isIntegralType(target.scalar_type(), /*includeBool=*/false)) return;
  const int64_t classes = input.size(input.dim() == 1 ? 0 : 1);
  const at::Tensor is_wrong = (target < 0).logical_or_(target >= classes).logical_and_(target != ignore_index);
  if (is_wrong.any().item<bool>())
    throw_no_such_class(target.masked_select(is_wrong)[0].item<int64_t>(), classes, ignore_index);
}

}  // namespace

at::Tensor cross_entropy(const at::Tensor& input, const at::Tensor& target, int64_t ignore_index) {
  if (DebugChecks::are_on()) check_classes(input, target, ignore_index);
  if (!fits_few_class_cross_entropy(input, target)) return libtorchs_cross_entropy(input, target, ignore_index);
  return FewClassCrossEntropy::apply(input, target, ignore_index);
}

at::Tensor max_pool2d(const at::Tensor& input, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                      at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  const KernelScope own_kernels;
  return at::max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode);
}

}  // namespace levin::nn::functional
