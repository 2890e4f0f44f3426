#include <levin/strategies/pipeline/deferred_weight_gradients.h>

#include <levin/core/base/detached_alias.h>
#include <levin/core/base/error.h>
#include <levin/core/base/permanent_library.h>
#include <levin/core/nn/forward_context.h>

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
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
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

/// The parameter that a matrix is, or was made from by conversion and transposition.
struct WeightSource {
  at::Tensor parameter;  ///< undefined: it is none
  std::shared_ptr<torch::autograd::Node> cast = {};
  bool is_transposed = false;
  bool has_hooks = false;
};

bool has_hooks(torch::autograd::Node& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() || !node.tensor_pre_hooks().empty() ||
         !node.retains_grad_hooks().empty() || node.tensor_post_acc_grad_hooks() != nullptr;
}

/// Follows the graph from the matrix to the parameter.
WeightSource source_of(const at::Tensor& matrix) {
  WeightSource source;
  auto node = torch::autograd::impl::gradient_edge(matrix).function;
  for (; node != nullptr; node = node->next_edge(0).function) {
    source.has_hooks |= has_hooks(*node);
    if (const auto* end = dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get())) {
      if (end->variable.dim() == 2 && end->variable.device() == matrix.device()) source.parameter = end->variable;
      return source;
    }
    if (node->name() == "TBackward0")
      source.is_transposed = !source.is_transposed;
    else if (node->name() == "ToCopyBackward0" && source.cast == nullptr)
      source.cast = node;
    else
      return source;
  }
  return source;
}

/// The gradient of a weight, [out, in].
at::Tensor weight_gradient(const at::Tensor& input, const at::Tensor& gradient) {
  return at::mm(gradient.reshape({-1, gradient.size(-1)}).t(), input.reshape({-1, input.size(-1)}));
}

class SplitLinear : public torch::autograd::Function<SplitLinear> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, std::shared_ptr<DeferredWeightGradients> deferred) {
    context->save_for_backward({input, weight});
    context->saved_data["has_bias"] = bias.has_value() && bias->defined();
    context->saved_data["deferred"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(std::move(deferred)));
    // It may be a view, which could not be changed in place as the result of an operation can; nothing else has it.
    return detached_alias(at::native::linear(input, weight, bias));
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
    at::Tensor of_weight;
    if (context->needs_input_grad(1)) {
      WeightSource source = source_of(saved[1]);
      if (source.has_hooks)
        of_weight = weight_gradient(saved[0].detach(), gradient);
      else
        c10::static_intrusive_pointer_cast<Holder>(context->saved_data["deferred"].toCapsule())
            ->deferred->add(std::move(source.parameter), std::move(source.cast), saved[0].detach(), gradient);
    }
    return {of_input, of_weight, of_bias, at::Tensor()};
  }
};

bool may_split(const at::Tensor& input, const at::Tensor& weight) {
  return active != nullptr && c10::GradMode::is_enabled() && weight.requires_grad() && weight.dim() == 2 &&
         input.dim() >= 2;
}

bool splits(const at::Tensor& input, const at::Tensor& weight) {
  if (!may_split(input, weight)) return false;
  const WeightSource source = source_of(weight);
  return source.parameter.defined() && !source.is_transposed;
}

/// The matrix of which another one is the transpose as t() gives it; undefined where it is none.
at::Tensor base_of_transpose(const at::Tensor& matrix) {
  if (matrix.dim() != 2 || !matrix.requires_grad() || !matrix.is_view()) return {};
  const at::Tensor base(matrix._base());
  const bool is_transpose = base.dim() == 2 && base.size(0) == matrix.size(1) && base.size(1) == matrix.size(0) &&
                            base.stride(0) == matrix.stride(1) && base.stride(1) == matrix.stride(0) &&
                            base.storage_offset() == matrix.storage_offset();
  return is_transpose ? base : at::Tensor();
}

/// The weight whose transpose a product's second factor is, with which the product splits; undefined where there is
/// none. Autocast converts what torch::nn::Linear has transposed.
at::Tensor weight_to_split(const at::Tensor& input, const at::Tensor& other) {
  if (!may_split(input, other)) return {};
  if (at::Tensor weight = base_of_transpose(other); weight.defined() && splits(input, weight)) return weight;
  const WeightSource source = source_of(other);
  return source.parameter.defined() && source.is_transposed ? other.t() : at::Tensor();
}

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  if (!splits(input, weight)) return at::native::linear(input, weight, bias);
  return SplitLinear::apply(input, weight, bias, active);
}

// torch::nn::Linear calls these two with its weight's transpose.

at::Tensor matmul(const at::Tensor& input, const at::Tensor& other) {
  if (active != nullptr)
    if (const at::Tensor weight = weight_to_split(input, other); weight.defined())
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
      if (const at::Tensor weight = weight_to_split(input, other); weight.defined())
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
    // A forward that runs again in backward must do the same.
    add_forward_context([]() -> ForwardContext {
      if (active == nullptr) return nullptr;
      return [deferred = active] { return std::make_shared<DeferWeightsScope>(deferred); };
    });
  });
}

}  // namespace

void DeferredWeightGradients::add(at::Tensor weight, std::shared_ptr<torch::autograd::Node> cast, at::Tensor input,
                                  at::Tensor gradient) {
  const MutexLock lock(mutex_);
  products_.push_back({std::move(weight), std::move(cast), std::move(input), std::move(gradient)});
}

int64_t DeferredWeightGradients::size() const {
  const MutexLock lock(mutex_);
  return static_cast<int64_t>(products_.size());
}

void DeferredWeightGradients::run() {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  std::vector<Product> products;
  {
    const MutexLock lock(mutex_);
    products = std::exchange(products_, {});
  }
  for (size_t first = 0; first < products.size(); ++first) {
    const at::Tensor weight = products[first].weight;
    if (!weight.defined()) continue;
    std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, at::Tensor>> of_casts;
    for (size_t i = first; i < products.size(); ++i) {
      Product& product = products[i];
      if (!product.weight.is_same(weight)) continue;
      const at::Tensor part = weight_gradient(product.input, product.gradient);
      const auto same = std::find_if(of_casts.begin(), of_casts.end(),
                                     [&](const auto& of_cast) { return of_cast.first == product.cast; });
      if (same == of_casts.end())
        of_casts.emplace_back(product.cast, part);
      else
        same->second.add_(part);
      product = {};
    }
    at::Tensor sum;
    for (const auto& [cast, of_cast] : of_casts) {
      const at::Tensor part = of_cast.to(weight.scalar_type());
      sum = sum.defined() ? sum.add_(part) : part;
    }
    if (at::Tensor& gradient = weight.mutable_grad(); gradient.defined())
      gradient.add_(sum);
    else
      gradient = sum;
  }
}

DeferWeightsScope::DeferWeightsScope(std::shared_ptr<DeferredWeightGradients> deferred) {
  if (deferred != nullptr) install();
  outer_ = std::exchange(active, std::move(deferred));
}

DeferWeightsScope::~DeferWeightsScope() { active = std::move(outer_); }

}  // namespace levin
