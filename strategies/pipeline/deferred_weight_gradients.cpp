#include <levin/strategies/pipeline/deferred_weight_gradients.h>

#include <levin/core/base/error.h>
#include <levin/core/base/permanent_library.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/matmul_native.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <utility>

namespace levin {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local std::shared_ptr<DeferredWeightGradients> active;

/// Carries the products from forward to backward.
struct Holder : torch::CustomClassHolder {
  explicit Holder(std::shared_ptr<DeferredWeightGradients> held) : deferred(std::move(held)) {}
  std::shared_ptr<DeferredWeightGradients> deferred;
};

class SplitLinear : public torch::autograd::Function<SplitLinear> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, std::shared_ptr<DeferredWeightGradients> deferred) {
    context->save_for_backward({input, weight});
    context->saved_data["has_bias"] = bias.has_value() && bias->defined();
    context->saved_data["deferred"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(std::move(deferred)));
    return at::native::linear(input, weight, bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (c10::GradMode::is_enabled())
      throw Error("pipeline",
                  "gradients of gradients do not pass through linear layers under the schedule zero_bubble; "
                  "hint: schedule: 1f1b");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& gradient = gradients[0];
    at::Tensor of_input;
    at::Tensor of_bias;
    if (context->needs_input_grad(0)) of_input = at::matmul(gradient, saved[1]);
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2))
      of_bias = gradient.reshape({-1, gradient.size(-1)}).sum(0);
    if (context->needs_input_grad(1))
      c10::static_intrusive_pointer_cast<Holder>(context->saved_data["deferred"].toCapsule())
          ->deferred->add(saved[1], saved[0].detach(), gradient);
    return {of_input, at::Tensor(), of_bias, at::Tensor()};
  }
};

bool splits(const at::Tensor& input, const at::Tensor& weight) {
  return active != nullptr && c10::GradMode::is_enabled() && weight.requires_grad() && weight.is_leaf() &&
         weight.dim() == 2 && input.dim() >= 2;
}

/// The matrix of which another one is the transpose as t() gives it; undefined where it is none.
at::Tensor transposed(const at::Tensor& matrix) {
  if (matrix.dim() != 2 || !matrix.requires_grad() || !matrix.is_view()) return {};
  const at::Tensor base(matrix._base());
  const bool is_transpose = base.dim() == 2 && base.size(0) == matrix.size(1) && base.size(1) == matrix.size(0) &&
                            base.stride(0) == matrix.stride(1) && base.stride(1) == matrix.stride(0) &&
                            base.storage_offset() == matrix.storage_offset();
  return is_transpose ? base : at::Tensor();
}

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  if (!splits(input, weight)) return at::native::linear(input, weight, bias);
  return SplitLinear::apply(input, weight, bias, active);
}

// torch::nn::Linear calls these two with its weight's transpose.

at::Tensor matmul(const at::Tensor& input, const at::Tensor& other) {
  if (active != nullptr)
    if (const at::Tensor weight = transposed(other); weight.defined() && splits(input, weight))
      return SplitLinear::apply(input, weight, std::nullopt, active);
  return at::native::matmul(input, other);
}

template <c10::DispatchKey kKey>
struct Addmm {
  /// LibTorch's own kernel, of which no function can be called.
  static inline std::optional<c10::SafeKernelFunction> own;

  static at::Tensor run(c10::DispatchKeySet keys, const at::Tensor& bias, const at::Tensor& input,
                        const at::Tensor& other, const at::Scalar& beta, const at::Scalar& alpha) {
    if (active != nullptr && bias.dim() == 1 && bias.size(0) == other.size(1) && beta.equal(1) && alpha.equal(1))
      if (const at::Tensor weight = transposed(other); weight.defined() && splits(input, weight))
        return SplitLinear::apply(input, weight, bias, active);
    torch::jit::Stack stack{bias, input, other, beta, alpha};
    own->callBoxed(own->opHandle(), keys, &stack);
    return stack.at(0).toTensor();
  }
};

template <c10::DispatchKey kKey>
void install_for() {
  Addmm<kKey>::own =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::addmm", "").getComputedKernelForDispatchKey(kKey);
  torch::Library& library = permanent_library(torch::Library::IMPL, "aten", kKey);
  library.impl("linear", TORCH_FN(linear));
  library.impl("matmul", TORCH_FN(matmul));
  library.impl("addmm", TORCH_FN(Addmm<kKey>::run));
}

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    install_for<c10::DispatchKey::AutogradCPU>();
    install_for<c10::DispatchKey::AutogradCUDA>();
    install_for<c10::DispatchKey::AutogradPrivateUse1>();
  });
}

}  // namespace

void DeferredWeightGradients::add(at::Tensor weight, at::Tensor input, at::Tensor gradient) {
  const MutexLock lock(mutex_);
  products_.push_back({std::move(weight), std::move(input), std::move(gradient)});
}

void DeferredWeightGradients::run() {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  std::vector<Product> products;
  {
    const MutexLock lock(mutex_);
    products = std::exchange(products_, {});
  }
  for (Product& product : products) {
    const at::Tensor rows = product.gradient.reshape({-1, product.gradient.size(-1)}).t();
    const at::Tensor input = product.input.reshape({-1, product.input.size(-1)});
    at::Tensor& gradient = product.weight.mutable_grad();
    if (gradient.defined())
      gradient.addmm_(rows, input);
    else
      gradient = at::mm(rows, input);
    product = {};
  }
}

DeferWeightsScope::DeferWeightsScope(std::shared_ptr<DeferredWeightGradients> deferred) {
  if (deferred != nullptr) install();
  outer_ = std::exchange(active, std::move(deferred));
}

DeferWeightsScope::~DeferWeightsScope() { active = std::move(outer_); }

}  // namespace levin
