#include <levin/core/nn/transformer/mlp.h>

#include <levin/core/base/error.h>
#include <levin/core/nn/transformer/block_operators.h>
#include <levin/core/nn/transformer/key_value_cache.h>
#include <levin/core/nn/transformer/linear_layer.h>
#include <levin/core/nn/transformer/token_kernels.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <fmt/format.h>

namespace levin::nn {

at::Tensor activate(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kRelu:
      break;
  }
  return at::relu(x);
}

MlpImpl::MlpImpl(const MlpOptions& options) : activation_(options.activation) {
  if (options.width < 1 || options.hidden < 0)
    throw ConfigError(
        fmt::format("Mlp: width is at least 1 and hidden 0 or above; got {} and {}", options.width, options.hidden));
  const int64_t hidden = options.hidden > 0 ? options.hidden : 4 * options.width;
  const auto project = [&](const char* name) {
    return register_module(name, detail::make_linear(options.width, hidden, options.bias, options.initial_std));
  };
  if (options.gated) gate_proj = project("gate_proj");
  up_proj = project("up_proj");
  down_proj = register_module(
      "down_proj",
      detail::make_linear(hidden, options.width, options.bias,
                          options.initial_output_std > 0 ? options.initial_output_std : options.initial_std));
  if (options.dropout > 0) dropout = register_module("dropout", torch::nn::Dropout(options.dropout));
}

at::Tensor MlpImpl::forward(const at::Tensor& x) {
  if (gate_proj && activation_ == Activation::kSilu && !dropout && takes_token_kernels(x)) {
    const at::Tensor gate = gate_proj(x);
    const at::Tensor up = up_proj(x);
    if (takes_token_kernels(gate) && takes_token_kernels(up)) {
      detail::multiply_by_silu(gate.const_data_ptr<float>(), up.const_data_ptr<float>(), gate.mutable_data_ptr<float>(),
                               gate.numel());
      return down_proj(gate);
    }
    return down_proj(at::silu(gate) * up);
  }
  at::Tensor hidden = gate_proj ? gate_proj(x) : up_proj(x);
  if (gate_proj) {
    const at::Tensor up = up_proj(x);
    const bool is_fused = activation_ == Activation::kSilu && hidden.scalar_type() == up.scalar_type() &&
                          detail::fits_block_operators_by_token(hidden, up);
    hidden = is_fused ? detail::silu_multiply(hidden, up) : activate(hidden, activation_) * up;
  } else {
    hidden = activate(hidden, activation_);
  }
  if (dropout) hidden = dropout(hidden);
  return down_proj(hidden);
}

TensorPlan MlpImpl::tensor_plan() const {
  TensorPlan plan{{.pattern = "up_proj", .cut = TensorCut::kColumn}, {.pattern = "down_proj", .cut = TensorCut::kRow}};
  if (gate_proj) plan.insert(plan.begin(), {.pattern = "gate_proj", .cut = TensorCut::kColumn});
  return plan;
}

}  // namespace levin::nn
