#include <levin/core/nn/transformer/block_operators.h>

#include <levin/core/base/permanent_library.h>
#include <levin/core/nn/behaviour_key.h>
#include <levin/core/nn/cut_context.h>
#include <levin/core/nn/transformer/block_kernels.h>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace levin::nn::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

/// Elements that are worth a thread.
constexpr int64_t kElementsOfTask = 1 << 14;
/// Rows whose part of a weight's gradient is summed on its own, whichever thread has them: so results do not depend on
/// the number of threads.
constexpr int64_t kRowsOfSum = 128;

/// Calls `run(Element())` with the type of a tensor's elements.
template <class Run>
void with_element(const at::Tensor& tensor, const Run& run) {
  tensor.scalar_type() == at::kFloat ? run(float()) : run(c10::BFloat16());
}

/// The factors of the features in float32; undefined without a weight.
at::Tensor scales_of(const std::optional<at::Tensor>& weight, bool weight_is_offset) {
  if (!weight || !weight->defined()) return {};
  const at::Tensor scales = weight->to(at::kFloat).contiguous();
  return weight_is_offset ? scales + 1 : scales;
}

const float* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

// ---- Operators without autograd

std::tuple<at::Tensor, at::Tensor> normalize(const at::Tensor& given, const std::optional<at::Tensor>& weight,
                                             double eps, bool weight_is_offset) {
  const at::Tensor x = given.contiguous();
  const int64_t size = x.size(-1);
  const int64_t rows = x.numel() / size;
  const at::Tensor scales = scales_of(weight, weight_is_offset);
  at::Tensor y = at::empty_like(x);
  at::Tensor factors = at::empty({rows}, x.options().dtype(at::kFloat));
  with_element(x, [&](auto element) {
    using Element = decltype(element);
    const auto* const from = x.const_data_ptr<Element>();
    auto* const to = y.mutable_data_ptr<Element>();
    auto* const kept = factors.mutable_data_ptr<float>();
    at::parallel_for(0, rows, 1 + kElementsOfTask / size, [&](int64_t begin, int64_t end) {
      normalize_rows_forward(from + begin * size, data_or_null(scales), eps, to + begin * size, kept + begin,
                             end - begin, size);
    });
  });
  return {std::move(y), std::move(factors)};
}

std::tuple<at::Tensor, at::Tensor> normalize_backward(const at::Tensor& given_slope, const at::Tensor& given,
                                                      const std::optional<at::Tensor>& weight,
                                                      const at::Tensor& factors, bool weight_is_offset, bool wants_x,
                                                      bool wants_weight) {
  const at::Tensor slope = given_slope.contiguous();
  const at::Tensor x = given.contiguous();
  const int64_t size = x.size(-1);
  const int64_t rows = x.numel() / size;
  const int64_t sums = (rows + kRowsOfSum - 1) / kRowsOfSum;
  const at::Tensor scales = scales_of(weight, weight_is_offset);
  at::Tensor x_slope = wants_x ? at::empty_like(x) : at::Tensor();
  at::Tensor partial = wants_weight ? at::zeros({sums, size}, factors.options()) : at::Tensor();
  with_element(x, [&](auto element) {
    using Element = decltype(element);
    const auto* const slopes = slope.const_data_ptr<Element>();
    const auto* const from = x.const_data_ptr<Element>();
    auto* const to = wants_x ? x_slope.mutable_data_ptr<Element>() : nullptr;
    auto* const of_weight = wants_weight ? partial.mutable_data_ptr<float>() : nullptr;
    at::parallel_for(0, sums, 1 + kElementsOfTask / (size * kRowsOfSum), [&](int64_t begin, int64_t end) {
      for (int64_t sum = begin; sum < end; ++sum) {
        const int64_t first = sum * kRowsOfSum;
        normalize_rows_backward(slopes + first * size, from + first * size, data_or_null(scales),
                                factors.const_data_ptr<float>() + first, wants_x ? to + first * size : nullptr,
                                wants_weight ? of_weight + sum * size : nullptr, std::min(kRowsOfSum, rows - first),
                                size);
      }
    });
  });
  at::Tensor weight_slope;
  if (wants_weight) weight_slope = (sums == 1 ? partial.select(0, 0) : partial.sum(0)).to(weight->scalar_type());
  // An operator returns defined tensors: a gradient that was not asked for is an empty one.
  const auto or_empty = [&](at::Tensor& tensor) {
    return tensor.defined() ? std::move(tensor) : at::empty({0}, factors.options());
  };
  return {or_empty(x_slope), or_empty(weight_slope)};
}

at::Tensor multiply(const at::Tensor& given_gate, const at::Tensor& given_up) {
  const at::Tensor gate = given_gate.contiguous();
  const at::Tensor up = given_up.contiguous();
  at::Tensor output = at::empty_like(gate);
  with_element(gate, [&](auto element) {
    using Element = decltype(element);
    const auto* const g = gate.const_data_ptr<Element>();
    const auto* const u = up.const_data_ptr<Element>();
    auto* const to = output.mutable_data_ptr<Element>();
    at::parallel_for(0, gate.numel(), kElementsOfTask, [&](int64_t begin, int64_t end) {
      silu_multiply_forward(g + begin, u + begin, to + begin, end - begin);
    });
  });
  return output;
}

std::tuple<at::Tensor, at::Tensor> multiply_backward(const at::Tensor& given_slope, const at::Tensor& given_gate,
                                                     const at::Tensor& given_up) {
  const at::Tensor slope = given_slope.contiguous();
  const at::Tensor gate = given_gate.contiguous();
  const at::Tensor up = given_up.contiguous();
  at::Tensor gate_slope = at::empty_like(gate);
  at::Tensor up_slope = at::empty_like(up);
  with_element(gate, [&](auto element) {
    using Element = decltype(element);
    const auto* const s = slope.const_data_ptr<Element>();
    const auto* const g = gate.const_data_ptr<Element>();
    const auto* const u = up.const_data_ptr<Element>();
    auto* const to_gate = gate_slope.mutable_data_ptr<Element>();
    auto* const to_up = up_slope.mutable_data_ptr<Element>();
    at::parallel_for(0, gate.numel(), kElementsOfTask, [&](int64_t begin, int64_t end) {
      silu_multiply_backward(s + begin, g + begin, u + begin, to_gate + begin, to_up + begin, end - begin);
    });
  });
  return {std::move(gate_slope), std::move(up_slope)};
}

at::Tensor turn(const at::Tensor& given, const at::Tensor& cosines, const at::Tensor& sines, bool back) {
  const at::Tensor x = given.stride(-1) == 1 ? given : given.contiguous();
  const int64_t heads = x.size(1);
  const int64_t length = x.size(2);
  const int64_t half = cosines.size(-1);
  const int64_t of_row = cosines.dim() == 4 ? length * half : 0;
  at::Tensor y = at::empty_like(x);
  with_element(x, [&](auto element) {
    using Element = decltype(element);
    const auto* const from = x.const_data_ptr<Element>();
    const auto* const cosine = cosines.const_data_ptr<Element>();
    const auto* const sine = sines.const_data_ptr<Element>();
    auto* const to = y.mutable_data_ptr<Element>();
    at::parallel_for(
        0, x.size(0) * length, 1 + kElementsOfTask / (heads * x.size(-1)), [&](int64_t begin, int64_t end) {
          for (int64_t token = begin; token < end; ++token) {
            const int64_t row = token / length;
            const int64_t place = token % length;
            const int64_t table = row * of_row + place * half;
            rotate_token<Element>({from + row * x.stride(0) + place * x.stride(2), x.stride(1)}, cosine + table,
                                  sine + table, {to + row * y.stride(0) + place * y.stride(2), y.stride(1)}, heads,
                                  half, x.size(-1), back);
          }
        });
  });
  return y;
}

/// Registered when they are first asked for.
struct Operators {
  Operators() {
    torch::Library& library = permanent_library(torch::Library::FRAGMENT, "levin", std::nullopt);
    library.def("rms_norm(Tensor x, Tensor? weight, float eps, bool weight_is_offset) -> (Tensor, Tensor)");
    library.def(
        "rms_norm_backward(Tensor slope, Tensor x, Tensor? weight, Tensor factors, bool weight_is_offset, bool "
        "wants_x, "
        "bool wants_weight) -> (Tensor, Tensor)");
    library.def("silu_multiply(Tensor gate, Tensor up) -> Tensor");
    library.def("silu_multiply_backward(Tensor slope, Tensor gate, Tensor up) -> (Tensor, Tensor)");
    library.def("rotate(Tensor x, Tensor cosines, Tensor sines, bool back) -> Tensor");
    const auto on_cpu = [&]<class Kernel>(const char* name, Kernel kernel) {
      library.impl(name, torch::dispatch(c10::DispatchKey::CPU, kernel));
    };
    on_cpu("rms_norm", TORCH_FN(normalize));
    on_cpu("rms_norm_backward", TORCH_FN(normalize_backward));
    on_cpu("silu_multiply", TORCH_FN(multiply));
    on_cpu("silu_multiply_backward", TORCH_FN(multiply_backward));
    on_cpu("rotate", TORCH_FN(turn));
    find("levin::rms_norm", rms_norm);
    find("levin::rms_norm_backward", rms_norm_backward);
    find("levin::silu_multiply", silu_multiply);
    find("levin::silu_multiply_backward", silu_multiply_backward);
    find("levin::rotate", rotate);
  }
  template <class Function>
  static void find(const char* name, std::optional<c10::TypedOperatorHandle<Function>>& handle) {
    handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
  }

  std::optional<c10::TypedOperatorHandle<decltype(normalize)>> rms_norm;
  std::optional<c10::TypedOperatorHandle<decltype(normalize_backward)>> rms_norm_backward;
  std::optional<c10::TypedOperatorHandle<decltype(multiply)>> silu_multiply;
  std::optional<c10::TypedOperatorHandle<decltype(multiply_backward)>> silu_multiply_backward;
  std::optional<c10::TypedOperatorHandle<decltype(turn)>> rotate;
};

const Operators& operators() {
  static const Operators made;
  return made;
}

// ---- Their gradients

/// Of a loss of which the gradient is part, by operators of LibTorch.
tensor_list differentiable(const at::Tensor& output, const std::vector<at::Tensor>& inputs, const at::Tensor& slope) {
  return torch::autograd::grad({output}, inputs, {slope}, /*retain_graph=*/true, /*create_graph=*/true);
}

at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, bool weight_is_offset) {
  return at::rms_norm(x, x.sizes().slice(x.dim() - 1), weight_is_offset && weight.defined() ? weight + 1 : weight, eps);
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& weight,
                            double eps, bool weight_is_offset) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [y, factors] = operators().rms_norm->call(x, weight, eps, weight_is_offset);
    context->save_for_backward({x, weight.value_or(at::Tensor()), factors});
    context->saved_data["eps"] = eps;
    context->saved_data["weight_is_offset"] = weight_is_offset;
    return y;
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& slopes) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const bool is_offset = context->saved_data.at("weight_is_offset").toBool();
    tensor_list results(4);
    const bool wants_x = context->needs_input_grad(0);
    const bool wants_weight = weight.defined() && context->needs_input_grad(1);
    if (at::GradMode::is_enabled()) {
      std::vector<at::Tensor> inputs;
      if (wants_x) inputs.push_back(x);
      if (wants_weight) inputs.push_back(weight);
      auto found = differentiable(plain_rms_norm(x, weight, context->saved_data.at("eps").toDouble(), is_offset),
                                  inputs, slopes[0]);
      if (wants_x) results[0] = found.front();
      if (wants_weight) results[1] = found.back();
      return results;
    }
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [x_slope, weight_slope] =
        operators().rms_norm_backward->call(slopes[0], x, weight.defined() ? std::optional(weight) : std::nullopt,
                                            saved[2], is_offset, wants_x, wants_weight);
    if (wants_x) results[0] = std::move(x_slope);
    if (wants_weight) results[1] = std::move(weight_slope);
    return results;
  }
};

struct SiluMultiplyFunction : torch::autograd::Function<SiluMultiplyFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({gate, up});
    return operators().silu_multiply->call(gate, up);
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& slopes) {
    const auto saved = context->get_saved_variables();
    if (at::GradMode::is_enabled()) {
      tensor_list results(2);
      std::vector<at::Tensor> inputs;
      for (size_t i = 0; i < 2; ++i)
        if (context->needs_input_grad(i)) inputs.push_back(saved[i]);
      auto found = differentiable(at::silu(saved[0]) * saved[1], inputs, slopes[0]);
      if (context->needs_input_grad(0)) results[0] = found.front();
      if (context->needs_input_grad(1)) results[1] = found.back();
      return results;
    }
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [gate_slope, up_slope] = operators().silu_multiply_backward->call(slopes[0], saved[0], saved[1]);
    return {std::move(gate_slope), std::move(up_slope)};
  }
};

/// A rotation is linear, so that its gradient is a rotation back, whose gradient is one forth.
struct RotateFunction : torch::autograd::Function<RotateFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cosines,
                            const at::Tensor& sines, bool back) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({cosines, sines});
    context->saved_data["back"] = back;
    return operators().rotate->call(x, cosines, sines, back);
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& slopes) {
    const auto saved = context->get_saved_variables();
    return {RotateFunction::apply(slopes[0], saved[0], saved[1], !context->saved_data.at("back").toBool()),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

bool is_followed_by_no_one(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.numel() > 0 && !tensor.is_neg() &&
         !levin::detail::has_behaviour_key(tensor) && !at::isTensorSubclassLike(tensor) &&
         !tensor._fw_grad(/*level=*/0).defined() && !torch::jit::tracer::isTracing();
}

bool fits_block_operators(const at::Tensor& x, const at::Tensor& other) {
  const auto fits = [](const at::Tensor& tensor) {
    return !tensor.defined() || ((tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16) &&
                                 is_followed_by_no_one(tensor));
  };
  return fits(x) && fits(other);
}

bool fits_block_operators_by_token(const at::Tensor& x, const at::Tensor& other) {
  return fits_block_operators(local_part(x), is_context_part(x) ? local_part(other) : other);
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, bool weight_is_offset) {
  if (is_context_part(x))
    return levin::detail::run_on_context_part(
        x, "rms_norm", [&](const at::Tensor& part) { return rms_norm(part, weight, eps, weight_is_offset); });
  return RmsNormFunction::apply(x, weight.defined() ? std::optional(weight) : std::nullopt, eps, weight_is_offset);
}

at::Tensor silu_multiply(const at::Tensor& gate, const at::Tensor& up) {
  if (is_context_part(gate))
    return levin::detail::run_on_context_part(
        gate, "silu_multiply", [&](const at::Tensor& part) { return silu_multiply(part, local_part(up)); });
  return SiluMultiplyFunction::apply(gate, up);
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines) {
  return RotateFunction::apply(x, cosines.contiguous(), sines.contiguous(), /*back=*/false);
}

}  // namespace levin::nn::detail
