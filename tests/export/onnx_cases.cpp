#include "onnx_cases.h"

#include <levin/core/nn/sequential.h>

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

namespace levin::testing {

using at::Tensor;

void add_elementwise_cases(OnnxCases& cases) {
  const Tensor odd = odd_numbers();
  const Tensor partners = odd_partners();
  const Tensor whole = whole_numbers();
  const Tensor truth = truths();
  const Tensor small = torch::tensor({-7, 0, 5, 100, -128, 127}, at::kChar).view({3, 2});
  const Tensor bytes = torch::tensor({0, 1, 127, 128, 254, 255}, at::kByte).view({3, 2});

  // ---- One tensor
  using Unary = Tensor (*)(const Tensor&);
  const std::vector<std::pair<std::string, Unary>> smooth = {{"cos", at::cos},     {"erf", at::erf},
                                                             {"exp", at::exp},     {"log", at::log},
                                                             {"rsqrt", at::rsqrt}, {"sigmoid", at::sigmoid},
                                                             {"sin", at::sin},     {"sqrt", at::sqrt},
                                                             {"tanh", at::tanh},   {"reciprocal", at::reciprocal}};
  for (const auto& [name, f] : smooth) {
    const bool turns = name == "cos" || name == "sin";
    cases.one(name, turns ? odd.clamp(-100, 100) : odd, f);
    cases.one(name + "_whole", whole, f);
    cases.one(name + "_bool", truth, f);
    if (name != "erf") cases.one(name + "_double", plain({3, 4}).to(at::kDouble), f);  // onnxruntime lacks that one
  }
  const std::vector<std::pair<std::string, Unary>> stepped = {{"abs", at::abs},     {"ceil", at::ceil},
                                                              {"floor", at::floor}, {"round", at::round},
                                                              {"sign", at::sign},   {"relu", at::relu}};
  for (const auto& [name, f] : stepped) {
    cases.one(name, odd, f);
    cases.one(name + "_whole", whole, f);
    cases.one(name + "_small", small, f);
    cases.one(name + "_int", whole.to(at::kInt), f);
  }
  cases.one("sign_bool", truth, [](const Tensor& x) { return x.sign(); });
  cases.one("abs_byte", bytes, [](const Tensor& x) { return x.abs(); });
  cases.one("neg", odd, [](const Tensor& x) { return -x; });
  cases.one("neg_whole", whole, [](const Tensor& x) { return -x; });
  cases.one("isnan", odd, [](const Tensor& x) { return x.isnan(); });
  cases.one("isnan_whole", whole, [](const Tensor& x) { return x.isnan(); });
  cases.one("silu", odd, [](const Tensor& x) { return at::silu(x); });
  cases.one("gelu", odd.clamp_max(1e6), [](const Tensor& x) { return at::gelu(x); });
  cases.one("gelu_tanh", odd.clamp_max(1e6), [](const Tensor& x) { return at::gelu(x, "tanh"); });
  cases.one("leaky_relu", odd, [](const Tensor& x) { return at::leaky_relu(x, 0.2); });
  cases.one("leaky_relu_negative", odd, [](const Tensor& x) { return at::leaky_relu(x, -0.5); });
  cases.one("elu", odd, [](const Tensor& x) { return at::elu(x); });
  cases.one("elu_alpha", odd, [](const Tensor& x) { return at::elu(x, -1.5); });
  cases.one("softplus", odd, [](const Tensor& x) { return at::softplus(x); });
  cases.one("softplus_beta", odd, [](const Tensor& x) { return at::softplus(x, 2.5); });
  cases.one("softplus_threshold", odd, [](const Tensor& x) { return at::softplus(x, -1, 0.75); });
  cases.one("hardswish", odd, [](const Tensor& x) { return at::hardswish(x); });
  cases.one("mish", odd, [](const Tensor& x) { return at::mish(x); });
  cases.one("relu6", odd, [](const Tensor& x) { return at::relu6(x); });
  cases.one("hardtanh", odd, [](const Tensor& x) { return at::hardtanh(x, -0.5, 2); });
  cases.one("clamp", odd, [](const Tensor& x) { return x.clamp(-1, 2); });
  cases.one("clamp_below", odd, [](const Tensor& x) { return x.clamp(-1); });
  cases.one("clamp_above", odd, [](const Tensor& x) { return x.clamp(std::nullopt, 2); });
  cases.one("clamp_crossed", odd, [](const Tensor& x) { return x.clamp(2, -1); });
  cases.one("clamp_whole", whole, [](const Tensor& x) { return x.clamp(-1, 4); });
  cases.one("clamp_promoted", whole, [](const Tensor& x) { return x.clamp(-1.5, 2.5); });
  cases.one("clamp_huge", whole, [](const Tensor& x) {
    return x.clamp(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  });
  cases.two("clamp_tensor", odd, partners,
            [](const Tensor& x, const Tensor& z) { return at::clamp(x, z, torch::tensor(3.0F)); });
  cases.one("clamp_min", odd, [](const Tensor& x) { return x.clamp_min(0.25); });
  cases.one("clamp_max", odd, [](const Tensor& x) { return x.clamp_max(0.25); });

  // ---- Two
  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  const std::vector<std::pair<std::string, Binary>> comparisons = {{"eq", at::eq}, {"ne", at::ne}, {"lt", at::lt},
                                                                   {"le", at::le}, {"gt", at::gt}, {"ge", at::ge}};
  for (const auto& [name, f] : comparisons) {
    cases.two(name, odd, partners, f);
    cases.two(name + "_same", odd, odd.clone(), f);
    cases.two(name + "_broadcast", plain({3, 4, 1}), plain({3, 1, 2}), f);
    cases.two(name + "_bool", truth, truth.flip(1), f);
    cases.two(name + "_bool_whole", truth, whole, f);
    cases.two(name + "_whole_float", whole, plain({3, 4}), f);
    cases.two(name + "_byte_small", bytes, small, f);
    cases.one(name + "_byte_number", bytes, [f](const Tensor& x) { return f(x, torch::tensor(128)); });
    cases.one(name + "_bool_half", truth, [f](const Tensor& x) { return f(x, torch::tensor(0.5)); });
    cases.one(name + "_bool_two", truth, [f](const Tensor& x) { return f(x, torch::tensor(2)); });
    cases.one(name + "_whole_half", whole, [f](const Tensor& x) { return f(x, torch::tensor(0.5)); });
    cases.one(name + "_zero_dim_first", whole, [f](const Tensor& x) { return f(torch::tensor(0.5), x); });
    cases.one(name + "_nan", odd, [f](const Tensor& x) { return f(x, torch::tensor(kNan)); });
  }
  cases.one("gt_scalar_bool", truth, [](const Tensor& x) { return x > 0.5; });
  cases.one("eq_scalar_bool", truth, [](const Tensor& x) { return x == 2; });
  cases.one("ge_scalar_whole", whole, [](const Tensor& x) { return x >= 0.5; });
  cases.one("lt_scalar_whole", whole, [](const Tensor& x) { return x < 3; });
  cases.one("le_scalar_float", odd, [](const Tensor& x) { return x <= 1; });
  cases.one("ne_scalar_nan", odd, [](const Tensor& x) { return x != kNan; });
  cases.one("eq_scalar_large", whole * 9007199254740993, [](const Tensor& x) { return x == 9007199254740993; });
  cases.one("ge_scalar_infinite", whole, [](const Tensor& x) { return x >= -kInfinity; });
  cases.one("lt_rows", whole, [](const Tensor& x) { return x < x.size(0); });

  cases.two("add", odd, partners, [](const Tensor& x, const Tensor& z) { return x + z; });
  cases.two("add_alpha", odd, partners, [](const Tensor& x, const Tensor& z) { return at::add(x, z, -0.5); });
  cases.two("add_broadcast", plain({3, 4, 1}), plain({3, 1, 2}),
            [](const Tensor& x, const Tensor& z) { return x + z; });
  cases.two("add_bool", truth, truth.flip(1), [](const Tensor& x, const Tensor& z) { return x + z; });
  cases.two("add_bool_whole", truth, whole, [](const Tensor& x, const Tensor& z) { return x + z; });
  cases.two("add_bool_float", truth, plain({3, 4}), [](const Tensor& x, const Tensor& z) { return x + z; });
  cases.two("add_whole_float", whole, plain({3, 4}), [](const Tensor& x, const Tensor& z) { return x + z; });
  cases.two("add_whole_alpha", whole, whole.flip(1), [](const Tensor& x, const Tensor& z) { return at::add(x, z, 3); });
  cases.two("add_bytes", bytes, small, [](const Tensor& x, const Tensor& z) { return x + z; });
  cases.one("add_number", whole, [](const Tensor& x) { return x + 0.5; });
  cases.one("add_bool_number", truth, [](const Tensor& x) { return x + 1; });
  cases.one("add_large_number", whole, [](const Tensor& x) { return x + 9007199254740993; });
  cases.one("add_nan_number", odd, [](const Tensor& x) { return x + kNan; });
  cases.one("add_nan_tensor", plain({3, 3}), [](const Tensor& x) {
    return x + torch::tensor({1.0F, kNan, kInfinity});
  });
  cases.one("add_in_place", odd, [](const Tensor& x) { return (x * 1).add_(2); });
  cases.two("sub", odd, partners, [](const Tensor& x, const Tensor& z) { return x - z; });
  cases.two("sub_alpha", whole, whole.flip(1), [](const Tensor& x, const Tensor& z) { return at::sub(x, z, -2); });
  cases.one("one_by", odd, [](const Tensor& x) { return 1 / x; });
  cases.one("filled", odd, [](const Tensor& x) { return at::zeros_like(x).fill_(kNan); });
  cases.one("one_minus", odd, [](const Tensor& x) { return 1 - x; });
  cases.one("one_minus_whole", whole, [](const Tensor& x) { return 1 - x; });
  cases.one("rsub_number", odd, [](const Tensor& x) { return at::rsub(x, 1); });
  cases.one("rsub_whole", whole, [](const Tensor& x) { return at::rsub(x, 1.5); });
  cases.two("rsub_alpha", odd, partners, [](const Tensor& x, const Tensor& z) { return at::rsub(x, z, 2.5); });
  cases.two("mul", odd, partners, [](const Tensor& x, const Tensor& z) { return x * z; });
  cases.two("mul_broadcast", plain({3, 4, 1}), plain({3, 2}).unsqueeze(1),
            [](const Tensor& x, const Tensor& z) { return x * z; });
  cases.two("mul_bool", truth, truth.flip(1), [](const Tensor& x, const Tensor& z) { return x * z; });
  cases.two("mul_bool_float", truth, plain({3, 4}), [](const Tensor& x, const Tensor& z) { return x * z; });
  cases.one("mul_bool_number", truth, [](const Tensor& x) { return x * 0.5; });
  cases.two("div", odd, partners, [](const Tensor& x, const Tensor& z) { return x / z; });
  cases.two("div_whole", whole, whole.flip(1), [](const Tensor& x, const Tensor& z) { return x / z; });
  cases.two("div_bool", truth, truth.flip(1), [](const Tensor& x, const Tensor& z) { return x / z; });
  cases.two("div_floor", odd, partners, [](const Tensor& x, const Tensor& z) { return at::div(x, z, "floor"); });
  cases.two("div_trunc", odd, partners, [](const Tensor& x, const Tensor& z) { return at::div(x, z, "trunc"); });
  cases.one("div_floor_tenths", plain({3, 4}), [](const Tensor& x) { return at::div(x, 0.1, "floor"); });
  cases.two("div_floor_whole", whole, whole.flip(0) * 2 + 1,
            [](const Tensor& x, const Tensor& z) { return at::div(x, z, "floor"); });
  cases.two("div_trunc_whole", whole, whole.flip(0) * 2 + 1,
            [](const Tensor& x, const Tensor& z) { return at::div(x, z, "trunc"); });
  cases.two("pow", odd, partners, [](const Tensor& x, const Tensor& z) { return x.pow(z); });
  cases.one("pow_square", odd, [](const Tensor& x) { return x.pow(2); });
  cases.one("pow_root", odd, [](const Tensor& x) { return x.pow(0.5); });
  cases.one("pow_negative_root", odd, [](const Tensor& x) { return x.pow(-0.5); });
  cases.one("pow_zero", odd, [](const Tensor& x) { return x.pow(0); });
  cases.one("pow_negative", odd, [](const Tensor& x) { return x.pow(-1); });
  cases.one("pow_whole", whole, [](const Tensor& x) { return x.pow(3); });
  cases.one("pow_whole_real", whole, [](const Tensor& x) { return x.pow(0.5); });
  cases.one("pow_of_number", odd.clamp(-30, 30), [](const Tensor& x) { return at::pow(2, x); });
  cases.one("square", odd, [](const Tensor& x) { return x.square(); });
  for (const auto& [name, f] : std::vector<std::pair<std::string, Binary>>{
           {"maximum", at::maximum}, {"minimum", at::minimum}, {"max_other", at::max}, {"min_other", at::min}}) {
    cases.two(name, odd, partners, f);
    cases.two(name + "_whole", whole, whole.flip(1), f);
    cases.two(name + "_bool", truth, truth.flip(1), f);
    cases.two(name + "_mixed", whole, plain({3, 4}), f);
    cases.two(name + "_bytes", bytes, bytes.flip(0), f);
    cases.two(name + "_broadcast", plain({3, 4, 1}), plain({3, 1, 2}), f);
  }
  for (const auto& [name, f] :
       std::vector<std::pair<std::string, Binary>>{{"logical_and", at::logical_and}, {"logical_or", at::logical_or}}) {
    cases.two(name, truth, truth.flip(1), f);
    cases.two(name + "_odd", odd, partners, f);
    cases.two(name + "_mixed", whole, plain({3, 4}), f);
  }
  cases.one("logical_not", truth, [](const Tensor& x) { return x.logical_not(); });
  cases.one("logical_not_odd", odd, [](const Tensor& x) { return x.logical_not(); });
  cases.two("where", odd, partners, [](const Tensor& x, const Tensor& z) { return at::where(x > 0, x, z); });
  cases.two("where_mixed", whole, plain({3, 4}),
            [](const Tensor& x, const Tensor& z) { return at::where(z > 0, x, z); });
  cases.one("where_numbers", odd, [](const Tensor& x) { return at::where(x > 0, kNan, -kInfinity); });
  cases.one("where_whole_numbers", whole, [](const Tensor& x) { return at::where(x > 0, 1, 9007199254740993); });
  cases.one("where_number", odd, [](const Tensor& x) { return at::where(x.isnan(), 0, x); });
  cases.two("where_broadcast", plain({3, 4, 1}), plain({3, 1, 2}),
            [](const Tensor& x, const Tensor& z) { return at::where(x > 0, z, torch::tensor(-1.0F)); });
  cases.two("masked_fill", odd, partners, [](const Tensor& x, const Tensor& z) { return x.masked_fill(z > 0, kNan); });
  cases.one("masked_fill_all", odd, [](const Tensor& x) {
    return x.masked_fill(torch::ones({1, 1}, at::kBool), -kInfinity);
  });
  cases.one("masked_fill_bool", truth, [](const Tensor& x) { return x.masked_fill(x.flip(1), 1); });
  cases.one("masked_fill_whole", whole,
            [](const Tensor& x) { return x.masked_fill(x > 0, std::numeric_limits<int64_t>::max()); });
  cases.one("masked_fill_tensor", whole, [](const Tensor& x) { return x.masked_fill(x > 0, torch::tensor(5)); });
  cases.two("masked_fill_broadcast", plain({3, 4, 2}), plain({3, 1, 2}),
            [](const Tensor& x, const Tensor& z) { return x.masked_fill(z > 0, 0); });

  // ---- Types
  cases.one("to_bool", odd, [](const Tensor& x) { return x.to(at::kBool); });
  cases.one("to_float", truth, [](const Tensor& x) { return x.to(at::kFloat); });
  cases.one("to_long", plain({3, 4}), [](const Tensor& x) { return x.to(at::kLong); });
  cases.one("to_byte", whole.abs(), [](const Tensor& x) { return x.to(at::kByte); });
  cases.one("to_double", odd, [](const Tensor& x) { return x.to(at::kDouble); });
  cases.two("type_as", whole, odd, [](const Tensor& x, const Tensor& z) { return x.type_as(z); });
  cases.one("same", odd, [](const Tensor& x) { return at::alias(x.clone().t().contiguous().detach()); });
  cases.one("dropout", odd, [](const Tensor& x) { return at::dropout(x, 0.5, false); });
  cases.one("feature_dropout", odd, [](const Tensor& x) { return at::feature_dropout(x, 0.5, false); });
  cases.one("by_rows", plain({3, 4}), [](const Tensor& x) { return x / x.size(0) - x.size(0); });
  cases.one("whole_times_rows", whole, [](const Tensor& x) { return x.mul(x.size(0)).add_(x.size(0)); });
  cases.one("tensor_of_rows", whole, [](const Tensor& x) { return x * torch::tensor(x.size(0)); });
  cases.one("untraced_tensor_of_rows", whole, [](const Tensor& x) { return x * c10::scalar_to_tensor(x.size(0)); });
  cases.one("to_real_rows", plain({3, 4}), [](const Tensor& x) { return x * static_cast<double>(x.size(0)); });
}

void add_shape_cases(OnnxCases& cases) {
  const Tensor odd = odd_numbers();
  const Tensor whole = whole_numbers();
  const Tensor truth = truths();
  const Tensor cube = plain({3, 4, 2});
  cases.one("reshape", cube, [](const Tensor& x) { return x.reshape({x.size(0), -1}); }).without_rows = false;
  cases.one("reshape_known", cube, [](const Tensor& x) { return x.reshape({x.size(0), 8}); });
  cases.one("reshape_rows", cube, [](const Tensor& x) { return x.reshape({-1, 8}); });
  cases.one("reshape_merged", cube, [](const Tensor& x) { return x.reshape({x.size(0) * 2, 4}); });
  cases.one("reshape_empty", plain({3, 0, 2}), [](const Tensor& x) { return x.reshape({x.size(0), 2, 0, 5}); });
  cases.one("view", cube, [](const Tensor& x) { return x.view({x.size(0), 2, 4}); });
  cases.one("view_empty", plain({3, 4, 0}), [](const Tensor& x) { return x.view({0, x.size(0), 7}); });
  cases.two("view_as", cube, plain({3, 8}), [](const Tensor& x, const Tensor& z) { return x.view_as(z); });
  cases.two("reshape_as", cube, plain({3, 8}), [](const Tensor& x, const Tensor& z) { return x.reshape_as(z); });
  cases.two("reshape_as_empty", plain({3, 0, 2}), plain({3, 5, 0}),
            [](const Tensor& x, const Tensor& z) { return x.reshape_as(z) + z; });
  cases.one("flatten", cube, [](const Tensor& x) { return x.flatten(1); });
  cases.one("flatten_all", cube, [](const Tensor& x) { return x.flatten(); });
  cases.one("flatten_front", cube, [](const Tensor& x) { return x.flatten(0, 1); });
  cases.one("flatten_middle", plain({3, 2, 2, 5}), [](const Tensor& x) { return x.flatten(1, -2); });
  cases.one("flatten_empty", plain({3, 0, 2}), [](const Tensor& x) { return x.flatten(1); });
  cases.one("flatten_nothing", cube, [](const Tensor& x) { return x.flatten(2); });
  cases.one("flatten_number", cube, [](const Tensor& x) { return x.sum().flatten(); });
  cases.one("unflatten", plain({3, 8}), [](const Tensor& x) { return x.unflatten(-1, {2, -1}); });
  cases.one("unflatten_known", plain({3, 8, 3}), [](const Tensor& x) { return x.unflatten(1, {2, 4}); });
  cases.one("unflatten_empty", plain({3, 0, 2}), [](const Tensor& x) { return x.unflatten(1, {0, 4}); });
  cases.one("transpose", cube, [](const Tensor& x) { return x.transpose(-1, 1); });
  cases.one("transpose_rows", cube, [](const Tensor& x) { return x.transpose(0, 2); });
  cases.one("transpose_number", cube, [](const Tensor& x) { return x.sum().transpose(0, -1); });
  cases.one("t", odd, [](const Tensor& x) { return x.t(); });
  cases.one("t_vector", cube, [](const Tensor& x) { return x.select(1, 0).select(1, 0).t(); });
  cases.one("permute", cube, [](const Tensor& x) { return x.permute({-1, 0, 1}); });
  cases.one("unsqueeze", odd, [](const Tensor& x) { return x.unsqueeze(-1).unsqueeze(0).unsqueeze(-2); });
  cases.one("squeeze", plain({3, 1, 2, 1}), [](const Tensor& x) { return x.squeeze(-1).squeeze(2); });
  cases.one("squeeze_several", plain({3, 1, 2, 1}), [](const Tensor& x) {
    return x.squeeze(at::IntArrayRef{1, 2, -1});
  });
  cases.one("squeeze_number", cube, [](const Tensor& x) { return x.sum().squeeze(0); });
  cases.one("expand", plain({3, 1, 2}), [](const Tensor& x) { return x.expand({5, -1, 4, 2}); });
  cases.one("expand_rows", plain({3, 1}), [](const Tensor& x) { return x.expand({x.size(0), 4}); });
  cases.one("expand_to_rows", plain({3, 2}), [](const Tensor& x) {
    return x + torch::tensor({{1.0F, kNan}}).expand({x.size(0), -1});
  });
  cases.one("expand_empty", plain({3, 1}), [](const Tensor& x) { return x.expand({-1, 0}); });
  cases.one("expand_empty_rows", plain({3, 1}), [](const Tensor& x) {
    return x.unsqueeze(1).expand({x.size(0), 0, 2});
  });
  cases.two("expand_as", plain({3, 1}), odd, [](const Tensor& x, const Tensor& z) { return x.expand_as(z); });
  cases.two("expand_as_empty", plain({3, 1}), plain({3, 0}),
            [](const Tensor& x, const Tensor& z) { return x.expand_as(z) + z; });
  cases.one("repeat", odd, [](const Tensor& x) { return x.repeat({2, 1, 3}); });
  cases.one("repeat_none", odd, [](const Tensor& x) { return x.repeat({1, 0}); });
  cases.two("cat", odd, plain({3, 2}), [](const Tensor& x, const Tensor& z) { return at::cat({x, z}, -1); });
  cases.two("cat_mixed", whole, truth, [](const Tensor& x, const Tensor& z) {
    return at::cat({x, z, x.to(at::kFloat) / 2}, 1);
  });
  cases.two("cat_bool_byte", truth, truth.to(at::kByte) * 7, [](const Tensor& x, const Tensor& z) {
    return at::cat({x, z}, 0);
  });
  cases.two("cat_empty", odd, plain({3, 0}), [](const Tensor& x, const Tensor& z) { return at::cat({x, z}, 1); });
  cases.one("cat_nothing", odd, [](const Tensor& x) { return at::cat({x, torch::zeros({0})}, 1); });
  cases.one("cat_constant", whole, [](const Tensor& x) { return at::concat({x, torch::full({1, 4}, kNan)}, 0); });
  cases.two("stack", whole, truth, [](const Tensor& x, const Tensor& z) { return at::stack({x, z}, -1); });
  cases.two("stack_floats", whole, plain({3, 4}), [](const Tensor& x, const Tensor& z) {
    return at::stack({x, z}, 1);
  });
  cases.lists("chunk", plain({3, 7}), [](const Tensor& x) { return x.chunk(3, -1); });
  cases.lists("split", plain({3, 7}), [](const Tensor& x) { return x.split(3, 1); });
  cases.lists("split_with_sizes", plain({3, 7}), [](const Tensor& x) { return x.split_with_sizes({2, 0, 5}, -1); });
  cases.lists("unsafe_chunk", plain({3, 7}), [](const Tensor& x) { return x.unsafe_chunk(3, -1); });
  cases.lists("unsafe_split", plain({3, 7}), [](const Tensor& x) { return x.unsafe_split(3, 1); });
  cases.lists("unsafe_split_with_sizes", plain({3, 7}), [](const Tensor& x) {
    return x.unsafe_split_with_sizes({2, 0, 5}, -1);
  });
  cases.lists("split_used_partly", plain({3, 7}), [](const Tensor& x) {
    const auto parts = x.split(2, 1);
    return std::vector<Tensor>{parts[3], parts[1] * 2};
  });
  cases.lists("unbind", plain({3, 4, 2}), [](const Tensor& x) { return x.unbind(-2); });
  cases.one("select", odd, [](const Tensor& x) { return x.select(-1, -2); });
  cases.one("select_first", odd, [](const Tensor& x) { return x.select(0, 0); }).without_rows = false;
  cases.one("select_last", odd, [](const Tensor& x) { return x.select(0, -1); }).without_rows = false;
  cases.one("slice", odd, [](const Tensor& x) { return x.slice(1, 1, -1, 2); });
  cases.one("slice_negative", odd, [](const Tensor& x) { return x.slice(-1, -4, -1); });
  cases.one("slice_beyond", odd, [](const Tensor& x) { return x.slice(1, -100, 100, 5); });
  cases.one("slice_crossed", odd, [](const Tensor& x) { return x.slice(1, 4, 2); });
  cases.one("slice_rows", odd, [](const Tensor& x) { return x.slice(0, 0, x.size(0)); });
  cases.one("slice_without_first", odd, [](const Tensor& x) { return x.slice(0, 1); });
  cases.one("narrow", odd, [](const Tensor& x) { return x.narrow(1, 2, 3); });
  cases.one("narrow_negative", odd, [](const Tensor& x) { return x.narrow(-1, -2, 2); });
  cases.one("narrow_none", odd, [](const Tensor& x) { return x.narrow(1, 6, 0); });
  cases.one("flip", odd, [](const Tensor& x) { return x.flip({-1, 0}); });
  cases.one("index_select", odd, [](const Tensor& x) { return x.index_select(-1, torch::tensor({5, 0, 0})); });
  cases.one("index_select_none", odd, [](const Tensor& x) { return x.index_select(1, torch::zeros({0}, at::kLong)); });
  cases.one("index_select_one", odd, [](const Tensor& x) { return x.index_select(1, torch::tensor(3)); });
  cases.two("index_select_rows", plain({3, 4}), torch::tensor({0, 0, 0}, at::kInt),
            [](const Tensor& x, const Tensor& z) { return x.index_select(0, z); });
  cases.two("gather", odd, torch::tensor({5, 0, 1, 1, 2, 3}).view({3, 2}),
            [](const Tensor& x, const Tensor& z) { return x.gather(-1, z); });
  cases.two("gather_none", odd, torch::zeros({3, 0}, at::kLong),
            [](const Tensor& x, const Tensor& z) { return x.gather(1, z); });
  cases.two("gather_fewer", cube, torch::tensor({3, 0, 1}).view({3, 1, 1}),
            [](const Tensor& x, const Tensor& z) { return x.gather(1, z); });
  cases.two("index", odd, torch::tensor({5, -1, 0}), [](const Tensor& x, const Tensor& z) {
    return x.index({torch::indexing::Slice(), z});
  });
  cases.one("index_rows", odd,
            [](const Tensor& x) {
              return x.index({torch::tensor({0, -1, 0})});
            })
      .without_rows = false;
  cases.one("index_matrix", cube, [](const Tensor& x) {
    return x.index({torch::indexing::Slice(), torch::tensor({{3, 0}, {1, 1}})});
  });
  cases.two("index_pair", plain({3, 4}), torch::tensor({3, 0, 1}), [](const Tensor& x, const Tensor& z) {
    return x.index({torch::arange(x.size(0)), z});
  });
  cases.two("index_add", plain({3, 4}), torch::tensor({0, 0, 0}), [](const Tensor& x, const Tensor& z) {
    return torch::zeros({5, 4}).index_add(0, z, x);
  });
  cases.one("index_add_columns", plain({3, 3}), [](const Tensor& x) {
    return torch::ones({x.size(0), 5}).index_add(1, torch::tensor({4, 0, 4}), x, 2);
  });
  cases.two("scatter_add", plain({3, 4}), torch::tensor({0, 0, 1, 1, 2, 0, 0, 0, 1, 1, 1, 1}).view({3, 4}),
            [](const Tensor& x, const Tensor& z) {
              return torch::zeros({x.size(0), 4}).scatter_add(1, z, x);
            });
  cases.two("embedding", plain({3, 4}), whole.abs() % 5, [](const Tensor& x, const Tensor& z) {
    return at::embedding(torch::arange(10.0).view({5, 2}), z).sum(-1) + x;
  });
  cases.one("embedding_none", torch::zeros({3, 0}, at::kLong), [](const Tensor& x) {
    return at::embedding(torch::arange(10.0).view({5, 2}), x);
  });
  cases.one("pad", odd, [](const Tensor& x) { return at::constant_pad_nd(x, {1, 2}, kNan); });
  cases.one("pad_negative", odd, [](const Tensor& x) { return at::constant_pad_nd(x, {-2, 1}, -kInfinity); });
  cases.one("pad_several", cube, [](const Tensor& x) { return at::constant_pad_nd(x, {1, 0, 0, 2}); });
  cases.one("pad_whole", whole, [](const Tensor& x) { return at::constant_pad_nd(x, {1, 2}, 9007199254740993); });
  cases.one("pad_bool", truth, [](const Tensor& x) { return at::constant_pad_nd(x, {1, 2}, 1); });
  cases.one("tril", plain({3, 4, 5}) * kNan, [](const Tensor& x) { return x.tril(); });
  cases.one("tril_below", plain({3, 4, 5}), [](const Tensor& x) { return x.tril(-2); });
  cases.one("tril_above", plain({3, 4, 5}), [](const Tensor& x) { return x.tril(10); });
  cases.one("triu", odd.unsqueeze(1).expand({3, 6, 6}), [](const Tensor& x) { return x.triu(1); });
  cases.one("triu_bool", truth.view({3, 2, 2}), [](const Tensor& x) { return x.triu(-1); });
  cases.one("triu_whole", whole.view({3, 2, 2}), [](const Tensor& x) { return x.triu(); });
  cases.one("triu_int", whole.view({3, 2, 2}).to(at::kInt), [](const Tensor& x) { return x.triu(); });
  cases.one("tril_byte", truth.view({3, 2, 2}).to(at::kByte), [](const Tensor& x) { return x.tril(); });
  cases.one("triu_empty", plain({3, 0, 4}), [](const Tensor& x) { return x.triu(); });

  // ---- From nothing
  cases.one("zeros", odd, [](const Tensor& x) { return torch::zeros({x.size(0), 2}, at::kBool); });
  cases.one("zeros_empty", odd, [](const Tensor& x) { return torch::zeros({x.size(0), 0}); });
  cases.one("ones", odd, [](const Tensor& x) { return torch::ones({2, x.size(0)}, at::kLong); });
  cases.one("full", odd, [](const Tensor& x) { return at::full({x.size(0), 2}, kNan); });
  cases.one("full_whole", odd, [](const Tensor& x) { return at::full({x.size(0), 2}, 9007199254740993); });
  cases.one("full_bool", odd, [](const Tensor& x) { return at::full({x.size(0), 2}, 1, at::kBool); });
  cases.one("zeros_like", odd, [](const Tensor& x) { return at::zeros_like(x); });
  cases.one("ones_like", odd, [](const Tensor& x) { return at::ones_like(x, at::kLong); });
  cases.one("full_like", odd, [](const Tensor& x) { return at::full_like(x, -kInfinity); });
  cases.one("full_like_whole", whole, [](const Tensor& x) { return at::full_like(x, 9007199254740993); });
  cases.one("arange", whole, [](const Tensor& x) { return x + torch::arange(4); });
  cases.one("arange_rows", whole, [](const Tensor& x) { return torch::arange(x.size(0)); });
  cases.one("arange_real", whole, [](const Tensor& x) { return x + torch::arange(1, 3, 0.5); });
  cases.one("arange_tenths", plain({3, 11}), [](const Tensor& x) { return x + torch::arange(0, 1.1, 0.1); });
  cases.one("arange_down", whole, [](const Tensor& x) { return x + torch::arange(4, 0, -1); });
  cases.one("arange_none", plain({3, 0}), [](const Tensor& x) { return x + torch::arange(3, 3); });
  cases.one("arange_real_rows", whole, [](const Tensor& x) { return torch::arange(x.size(0), at::kFloat); });
  cases.one("randn_like", plain({3, 4}), [](const Tensor& x) { return torch::randn_like(x) * 0; });
}

void add_reduction_cases(OnnxCases& cases) {
  const Tensor odd = odd_numbers();
  const Tensor nans =
      torch::tensor({1.0F, kNan, 3.0F, kNan, 2.0F, 2.0F, -1.0F, kInfinity, -kInfinity, kNan, -5.0F, 9.0F}).view({3, 4});
  const Tensor plain_rows = plain({3, 5});
  const Tensor whole = whole_numbers();
  const Tensor truth = truths();
  const Tensor bytes = truth.to(at::kByte) * 200;
  const Tensor below = torch::full({3, 4}, -kInfinity);
  for (const auto& [name, x] : std::vector<std::pair<std::string, Tensor>>{{"", plain_rows},
                                                                           {"_nan", nans},
                                                                           {"_whole", whole},
                                                                           {"_bool", truth},
                                                                           {"_empty", plain({3, 0})},
                                                                           {"_small", whole.to(at::kChar)},
                                                                           {"_byte", bytes},
                                                                           {"_infinite", below}}) {
    cases.one("sum" + name, x, [](const Tensor& x) { return x.sum(-1, true); });
    cases.one("sum_all" + name, x, [](const Tensor& x) { return x.sum(); });
    if (c10::isFloatingType(x.scalar_type())) {
      cases.one("norm" + name, x, [](const Tensor& x) { return x.norm(); });
      cases.one("norm_dim" + name, x, [](const Tensor& x) { return x.norm(2, 1, true); });
      cases.one("norm_1" + name, x, [](const Tensor& x) { return x.norm(1, -1); });
      cases.one("vector_norm" + name, x,
                [](const Tensor& x) { return at::linalg_vector_norm(x, 2, at::IntArrayRef{1}); });
      cases.one("normalize" + name, x, [](const Tensor& x) { return torch::nn::functional::normalize(x); });
    }
    if (x.size(1) == 0) continue;
    if (c10::isFloatingType(x.scalar_type()))
      cases.one("norm_infinity" + name, x, [](const Tensor& x) {
        return at::linalg_vector_norm(x, std::numeric_limits<double>::infinity(), at::IntArrayRef{1});
      });
    cases.one("amax" + name, x, [](const Tensor& x) { return x.amax(1); });
    cases.one("amin" + name, x, [](const Tensor& x) { return x.amin(-1, true); });
    cases.lists("max_dim" + name, x, [](const Tensor& x) {
      const auto [values, places] = x.max(-1);
      return std::vector<Tensor>{values, places};
    });
    cases.lists("min_dim" + name, x, [](const Tensor& x) {
      const auto [values, places] = x.min(1, true);
      return std::vector<Tensor>{values, places};
    });
    cases.one("max_all" + name, x, [](const Tensor& x) { return x.max(); });
    cases.one("min_all" + name, x, [](const Tensor& x) { return x.min(); });
    if (x.scalar_type() == at::kBool) continue;  // LibTorch does not either
    cases.one("argmax" + name, x, [](const Tensor& x) { return x.argmax(-1); });
    cases.one("argmin" + name, x, [](const Tensor& x) { return x.argmin(1, true); });
    cases.one("argmax_all" + name, x, [](const Tensor& x) { return x.argmax(); });
    cases.one("argmin_all" + name, x, [](const Tensor& x) { return x.argmin(); });
  }
  cases.one("sum_double", whole, [](const Tensor& x) { return x.sum(1, false, at::kDouble); });
  cases.one("sum_rows", plain_rows, [](const Tensor& x) { return x.sum(0); });
  cases.one("sum_no_dimensions", plain({3, 2, 2}), [](const Tensor& x) { return x.sum(at::IntArrayRef{}); });
  cases.one("sum_several", plain({3, 2, 2}), [](const Tensor& x) { return x.sum({-1, 1}); });
  cases.one("sum_number", plain_rows, [](const Tensor& x) { return x.sum().sum(0); });
  cases.one("mean", plain_rows, [](const Tensor& x) { return x.mean(-1); });
  cases.one("mean_nan", nans, [](const Tensor& x) { return x.mean(-1, true); });
  cases.one("mean_all", plain_rows, [](const Tensor& x) { return x.mean(); });
  cases.one("mean_rows", plain_rows, [](const Tensor& x) { return x.mean(0); });
  cases.one("mean_empty", plain({3, 0}), [](const Tensor& x) { return x.mean(1); });
  cases.one("mean_whole", whole, [](const Tensor& x) { return x.mean(1, false, at::kFloat); });
  cases.one("amax_all", plain({3, 2, 2}), [](const Tensor& x) { return x.amax(); });
  cases.one("amin_several", plain({3, 2, 2}), [](const Tensor& x) { return x.amin({1, 2}); });
  cases.one("cumsum", plain_rows, [](const Tensor& x) { return x.cumsum(-1); });
  cases.one("cumsum_nan", nans, [](const Tensor& x) { return x.cumsum(1); });
  cases.one("cumsum_whole", whole, [](const Tensor& x) { return x.cumsum(1); });
  cases.one("cumsum_bool", truth, [](const Tensor& x) { return x.cumsum(1); });
  cases.one("cumsum_rows", plain_rows, [](const Tensor& x) { return x.cumsum(0); });
  cases.one("cumsum_empty", plain({3, 0}), [](const Tensor& x) { return x.cumsum(1); });
  for (const auto& [name, x] :
       std::vector<std::pair<std::string, Tensor>>{{"", plain({3, 8})}, {"_nan", nans}, {"_whole", whole}}) {
    for (const bool largest : {true, false})
      cases.lists((largest ? "topk" : "topk_smallest") + name, x, [largest](const Tensor& x) {
        const auto [values, places] = x.topk(2, -1, largest);
        return std::vector<Tensor>{values, places.sum(-1) * 0};
      });
  }
  cases.lists("topk_places", plain({3, 5}), [](const Tensor& x) {
    const auto [values, places] = x.topk(3, 1, false, true);
    return std::vector<Tensor>{values, places};
  });
  cases.one("topk_none", plain({3, 5}), [](const Tensor& x) { return std::get<0>(x.topk(0)); });
  for (const auto& [name, f] : std::vector<std::pair<std::string, std::function<Tensor(const Tensor&, int64_t)>>>{
           {"softmax", [](const Tensor&x, int64_t dim) { return x.softmax(dim); }},
           {"log_softmax", [](const Tensor&x, int64_t dim) { return x.log_softmax(dim); }}}) {
    const auto along = [f](int64_t dim) { return [f, dim](const Tensor& x) { return f(x, dim); }; };
    cases.one(name, plain({3, 4, 5}), along(1));
    cases.one(name + "_nan", nans, along(-1));
    cases.one(name + "_infinite", below, along(-1));
    cases.one(name + "_partly", torch::cat({below, plain({3, 4})}, 1), along(1));
    cases.one(name + "_odd", odd, along(1));
    cases.one(name + "_large", plain({3, 4}) * 1e30F, along(1));
    cases.one(name + "_empty", plain({3, 0}), along(1));
    cases.one(name + "_number", plain({3, 4}), [f](const Tensor& x) { return f(x.sum(), 0); });
  }
  cases.one("softmax_whole", whole, [](const Tensor& x) { return at::softmax(x, 1, at::kFloat); });
  cases.one("log_softmax_double", plain({3, 4}), [](const Tensor& x) { return at::log_softmax(x, 1, at::kDouble); });
}

void add_product_cases(OnnxCases& cases) {
  const Tensor with_nan = plain({3, 4, 2}).masked_fill(plain({3, 4, 2}) == 1, kNan);
  cases.two("matmul", with_nan, plain({3, 2, 5}), [](const Tensor& x, const Tensor& z) { return x.matmul(z); });
  cases.one("matmul_vectors", plain({3, 4}), [](const Tensor& x) { return x.matmul(torch::arange(4.0)); });
  cases.one("matmul_rows", plain({3, 4}), [](const Tensor& x) { return x.t().matmul(x); });
  cases.one("matmul_vector_first", plain({3, 4, 5}), [](const Tensor& x) { return torch::arange(4.0).matmul(x); });
  cases.one("matmul_dot", plain({3, 4}), [](const Tensor& x) { return x.sum(0).matmul(torch::arange(4.0)); });
  cases.two("matmul_broadcast", plain({3, 1, 4, 2}), plain({3, 5, 2, 3}),
            [](const Tensor& x, const Tensor& z) { return x.matmul(z); });
  cases.two("matmul_whole", whole_numbers(), whole_numbers(),
            [](const Tensor& x, const Tensor& z) { return x.matmul(z.t()); });
  cases.one("mm_empty", plain({3, 0}), [](const Tensor& x) { return x.mm(torch::zeros({0, 4})); });
  cases.two("bmm", with_nan, plain({3, 2, 5}), [](const Tensor& x, const Tensor& z) { return x.bmm(z); });
  cases.two("bmm_empty", plain({3, 4, 0}), plain({3, 0, 5}), [](const Tensor& x, const Tensor& z) { return x.bmm(z); });
  cases.one("mv", plain({3, 4}), [](const Tensor& x) { return x.mv(torch::arange(4.0)); });
  cases.one("dot", plain({3, 4}), [](const Tensor& x) { return x.sum(0).dot(torch::arange(4.0)); });
  cases.one("outer", plain({3, 4}), [](const Tensor& x) { return x.select(1, 0).outer(torch::tensor({1.0F, kNan})); });
  cases.two("outer_mixed", torch::tensor({1, 2, 3}), torch::tensor({true, false, true}),
            [](const Tensor& x, const Tensor& z) { return at::outer(x, z) + at::ger(z, z); });
  cases.two("addcmul", with_nan, plain({3, 1, 2}), [](const Tensor& x, const Tensor& z) {
    return at::addcmul(x, z, plain({2}), -1) + at::addcmul(torch::tensor(0.5), x, z);
  });
  cases.two("addcmul_whole", whole_numbers(), whole_numbers(),
            [](const Tensor& x, const Tensor& z) { return at::addcmul(x, z, z, 3); });
  cases.two("addcdiv", with_nan, plain({3, 1, 2}).abs() + 1,
            [](const Tensor& x, const Tensor& z) { return at::addcdiv(x, plain({2}), z, 0.5) - at::addcdiv(x, x, z); });
  cases.one("addmm", plain({3, 4}), [](const Tensor& x) {
    return at::addmm(torch::arange(5.0), x, plain({4, 5}), 2, -0.5);
  });
  cases.one("addmm_beta_zero", plain({3, 4}), [](const Tensor& x) {
    return at::addmm(torch::full({5}, kNan), x, plain({4, 5}), 0, 1);
  });
  cases.one("addmm_number", plain({3, 4}), [](const Tensor& x) {
    return at::addmm(torch::tensor(2.0F), x, plain({4, 5}));
  });
  cases.one("addmm_empty", plain({3, 0}), [](const Tensor& x) {
    return at::addmm(torch::arange(5.0), x, torch::zeros({0, 5}));
  });
  cases.one("addmm_whole", whole_numbers(), [](const Tensor& x) {
    return at::addmm(torch::arange(3), x, torch::arange(12).view({4, 3}), 2, 3);
  });
  cases.two("baddbmm", with_nan, plain({3, 2, 5}),
            [](const Tensor& x, const Tensor& z) { return at::baddbmm(torch::arange(5.0), x, z, 0.5, -2); });
  cases.two("baddbmm_beta_zero", plain({3, 4, 2}), plain({3, 2, 5}),
            [](const Tensor& x, const Tensor& z) { return at::baddbmm(torch::full({1}, kNan), x, z, 0, 1); });
  cases.unit("linear", torch::nn::Linear(4, 5), plain({3, 4}));
  cases.unit("linear_no_bias", torch::nn::Linear(torch::nn::LinearOptions(4, 5).bias(false)), plain({3, 2, 4}));
  cases.unit("linear_deep", torch::nn::Linear(4, 5), plain({3, 2, 2, 4}));
  cases.unit("linear_nan", torch::nn::Linear(2, 5), with_nan);
  cases.unit("linear_none", torch::nn::Linear(4, 5), plain({3, 0, 4}));
  const auto by_linear = [](at::IntArrayRef weight, const std::optional<Tensor>& bias) {
    return [weight = plain(weight), bias](const Tensor& x) { return at::linear(x, weight, bias); };
  };
  cases.one("at_linear", plain({3, 4}), by_linear({5, 4}, plain({5})));
  cases.one("at_linear_no_bias", plain({3, 4}), by_linear({5, 4}, {}));
  cases.one("at_linear_deep", plain({3, 2, 4}), by_linear({5, 4}, plain({5})));
  cases.one("at_linear_deep_no_bias", with_nan, by_linear({5, 2}, {}));
  cases.one("at_linear_none", plain({3, 0, 4}), by_linear({5, 4}, plain({5})));
  cases.one("at_linear_no_inputs", plain({3, 0}), by_linear({5, 0}, plain({5})));
  cases.one("at_linear_one", plain({3, 4}), by_linear({4}, {}));
  cases.one("at_linear_vector", plain({3, 4}), [](const Tensor& x) {
    return at::linear(x.sum(0), plain({5, 4}), plain({5}));
  });

  // ---- einsum
  const auto einsum = [](const char* equation) {
    return [equation](const Tensor& x, const Tensor& z) { return at::einsum(equation, {x, z}); };
  };
  cases.two("einsum", plain({3, 4}), plain({3, 5}), einsum("bi,bj->bij"));
  cases.two("einsum_spaces", plain({3, 4}), plain({3, 5}), einsum(" b i, b j -> b i j "));
  cases.two("einsum_implicit", plain({3, 4}), plain({3, 4, 5}), einsum("bi,bij"));
  cases.two("einsum_implicit_order", plain({3, 4}), plain({3, 5}), einsum("bZ,ba"));
  cases.two("einsum_upper", plain({3, 4}), plain({3, 5}), einsum("Bi,Bj->jB"));
  cases.two("einsum_ellipsis", plain({3, 2, 4}), plain({3, 2, 5}), einsum("b...d,b...e->b...de"));
  cases.two("einsum_summed_ellipsis", plain({3, 2, 4}), plain({3, 2, 5}), einsum("b...d,b...e->bde"));
  cases.two("einsum_empty_ellipsis", plain({3, 4}), plain({3, 5}), einsum("b...d,b...e->bde"));
  cases.two("einsum_uneven_ellipsis", plain({3, 2, 5, 4}), plain({3, 5, 6}), einsum("b...d,b...e->b...de"));
  cases.two("einsum_ellipsis_last", plain({3, 4, 2}), plain({3, 4, 5}), einsum("...i,...j->...ij"));
  cases.two("einsum_implicit_ellipsis", plain({3, 4, 2}), plain({3, 2, 5}), einsum("...ij,...jk"));
  // Without rows, these end the process of onnxruntime.
  cases.two("einsum_broadcast", plain({3, 1, 4}), plain({3, 2, 4}), einsum("bij,bij->bi")).without_rows = false;
  cases.two("einsum_broadcast_kept", plain({3, 1, 4}), plain({3, 2, 5}), einsum("bij,bik->bijk"));
  cases.two("einsum_broadcast_ellipsis", plain({3, 1, 4}), plain({3, 2, 4}), einsum("b...i,b...i->b...")).without_rows =
      false;
  cases.two("einsum_diagonal", plain({3, 4, 4}), plain({3, 4}), einsum("bii,bi->bi"));
  cases.two("einsum_trace", plain({3, 4, 4}), plain({3, 4}), einsum("bii,bj->bj"));
  cases.two("einsum_all", plain({3, 4}), plain({3, 4}), einsum("bi,bi->"));
  cases.two("einsum_nan", plain({3, 4}).masked_fill(plain({3, 4}) > 1, kNan), plain({3, 4}), einsum("bi,bi->b"));
  cases.two("einsum_none", plain({3, 0}), plain({3, 0}), einsum("bi,bi->b"));
  cases.one("einsum_one", plain({3, 4, 2}), [](const Tensor& x) { return at::einsum("b...->...b", {x}); });
  cases.one("einsum_transposed", plain({3, 4}), [](const Tensor& x) { return at::einsum("ba", {x}); });
  cases.several("einsum_three", {{"x", plain({3, 4})}, {"z", plain({3, 5})}, {"w", plain({3, 4, 5})}},
                [](const Batch& batch) {
                  return at::einsum("bi,bj,bij->b", {batch["x"], batch["z"], batch["w"]});
                });

  // ---- Attention
  const auto attend = [&cases](const std::string& name, const Tensor& mask, std::optional<double> scale, bool causal,
                               const Tensor& queries, const Tensor& keys) {
    Batch batch{{"q", queries}, {"k", keys}, {"v", keys * 2 - 1}};
    if (mask.defined()) batch.set("mask", mask);
    cases.several(name, batch, [=](const Batch& given) {
      const Tensor* own = given.find("mask");
      return at::scaled_dot_product_attention(given["q"], given["k"], given["v"],
                                              own != nullptr ? std::optional(*own) : std::nullopt, 0, causal, scale);
    });
  };
  const Tensor queries = plain({3, 2, 4, 6});
  const Tensor keys = plain({3, 2, 5, 6});
  Tensor shown = torch::arange(60).view({3, 1, 4, 5}) % 3 != 0;
  shown[1].fill_(false);
  shown[2][0][1].fill_(false);
  const Tensor added = torch::zeros({3, 1, 4, 5}).masked_fill(~shown, -kInfinity);
  attend("attention", {}, {}, false, queries, keys);
  attend("attention_causal", {}, {}, true, queries, keys);
  attend("attention_causal_long", {}, {}, true, keys, queries);
  attend("attention_masked", shown, {}, false, queries, keys);
  attend("attention_masked_added", added, {}, false, queries, keys);
  attend("attention_masked_all", torch::zeros_like(shown), {}, false, queries, keys);
  attend("attention_masked_nan", shown, {}, false, queries, keys.masked_fill(keys == 1, kNan));
  attend("attention_nan_mask", added + torch::full({5}, kNan).masked_fill(torch::arange(5) > 0, 0), {}, false, queries,
         keys);
  attend("attention_infinite_scores", {}, {}, false, queries.abs() + 1, keys.masked_fill(keys == 1, -kInfinity));
  attend("attention_negative_scale", shown, -0.7, false, queries, keys);
  attend("attention_zero_scale", added, 0.0, false, queries, keys);
  attend("attention_no_keys", {}, {}, false, queries, plain({3, 2, 0, 6}));
  attend("attention_no_queries", {}, {}, false, plain({3, 2, 0, 6}), keys);
  attend("attention_three", shown.squeeze(1), {}, false, plain({3, 4, 6}), plain({3, 5, 6}));
  attend("attention_mask_per_head", shown.expand({3, 2, 4, 5}), {}, false, queries, keys);
  for (const int64_t shared : {1, 2, 4})
    cases.several("attention_groups_" + std::to_string(shared),
                  {{"q", plain({3, 4, 4, 6})}, {"k", plain({3, shared, 5, 6})}, {"v", plain({3, shared, 5, 6}).sin()}},
                  [](const Batch& given) {
                    return at::scaled_dot_product_attention(given["q"], given["k"], given["v"], {}, 0, true, {},
                                                            /*enable_gqa=*/true);
                  });
  attend("attention_key_mask", shown.slice(2, 1, 2), {}, false, queries, keys);
}

/// A recurrent network gives its outputs and its last state, or its last state and cell.
template <class Holder>
void add_recurrent_case(OnnxCases& cases, const std::string& name, Holder net, const Tensor& x) {
  OnnxCase& added = cases.lists(name, x, [net](const Tensor& input) mutable -> std::vector<Tensor> {
    const auto [outputs, state] = net->forward(input);
    if constexpr (std::is_same_v<std::decay_t<decltype(state)>, Tensor>)
      return {outputs, state};
    else
      return {outputs, std::get<0>(state), std::get<1>(state)};
  });
  added.module = net.ptr();
  added.without_rows = false;  // they end the process of onnxruntime
}

void add_unit_cases(OnnxCases& cases) {
  using namespace torch::nn;
  const Tensor image = plain({3, 4, 7, 6});
  const Tensor signal = plain({3, 4, 9});
  const Tensor volume = plain({3, 2, 5, 4, 6});
  const Tensor odd_image = image.masked_fill(image == 1, kNan).masked_fill(image == -2, -kInfinity);

  // ---- Convolutions
  cases.unit("conv1d", Conv1d(Conv1dOptions(4, 6, 3).stride(2).padding(1).dilation(2).groups(2)), signal);
  cases.unit("conv2d", Conv2d(Conv2dOptions(4, 6, {3, 2}).stride({2, 1}).padding({1, 0})), image);
  cases.unit("conv2d_nan", Conv2d(Conv2dOptions(4, 6, 3).bias(false)), image.masked_fill(image == 1, kNan));
  cases.unit("conv3d", Conv3d(2, 3, 2), volume);
  cases.unit("conv_transpose1d", ConvTranspose1d(ConvTranspose1dOptions(4, 2, 3).stride(3).output_padding(2)), signal);
  cases.unit("conv_transpose2d",
             ConvTranspose2d(ConvTranspose2dOptions(4, 6, 3).stride(2).padding(1).output_padding(1).groups(2)), image);
  cases.unit("conv_transpose3d", ConvTranspose3d(2, 3, 2), volume);
  cases.one("conv1d_one_row", plain({3, 9}), [](const Tensor& x) {
    return at::conv1d(x.unsqueeze(1), plain({2, 1, 3}));
  });
  cases.one("conv1d_unbatched", plain({3, 4, 9}), [](const Tensor& x) {
    return at::conv1d(x.sum(0), plain({2, 4, 3}));
  });
  cases.one("conv2d_unbatched", plain({3, 4, 9}), [](const Tensor& x) {
    return at::conv2d(x.sum(0, true), plain({2, 1, 2, 3}), torch::arange(2.0));
  });
  cases.one("convolution", image, [](const Tensor& x) {
    return at::convolution(x, plain({2, 4, 3, 3}), {}, {1, 1}, {1, 0}, {1, 1}, false, {0, 0}, 1);
  });
  cases.one("convolution_transposed", image, [](const Tensor& x) {
    return at::convolution(x, plain({4, 2, 3, 3}), {}, {2, 1}, {1, 0}, {1, 1}, true, {1, 0}, 1);
  });
  cases.one("_convolution", image, [](const Tensor& x) {
    return at::_convolution(x, plain({2, 4, 3, 3}), {}, {1, 1}, {1, 0}, {1, 1}, false, {0, 0}, 1, false, false, false,
                            false);
  });

  // ---- Pooling
  cases.unit("max_pool1d", MaxPool1d(MaxPool1dOptions(3).stride(2).padding(1)), signal);
  cases.unit("max_pool2d", MaxPool2d(MaxPool2dOptions({3, 2}).stride({2, 1})), image);
  // onnxruntime's passes over NaN, and has no -inf of its own.
  cases.unit("max_pool2d_infinite", MaxPool2d(MaxPool2dOptions(2).stride(1)),
             image.masked_fill(image == -2, -kInfinity));
  cases.unit("max_pool2d_negative", MaxPool2d(MaxPool2dOptions(3).stride(2).padding(1)), -image.abs() - 1);
  cases.unit("max_pool2d_ceil", MaxPool2d(MaxPool2dOptions(2).stride(2).padding(1).ceil_mode(true)), image);
  cases.unit("max_pool2d_ceil_3", MaxPool2d(MaxPool2dOptions(3).stride(3).padding(1).ceil_mode(true)), image);
  cases.unit("max_pool2d_dilated", MaxPool2d(MaxPool2dOptions(2).stride(1).dilation(3)), image);
  cases.unit("max_pool3d", MaxPool3d(MaxPool3dOptions(2).stride(1)), volume);
  cases.one("max_pool1d_unbatched", signal, [](const Tensor& x) { return at::max_pool1d(x.sum(0), 2); });
  cases.one("max_pool2d_unbatched", image, [](const Tensor& x) { return at::max_pool2d(x.sum(0), {2, 2}); });
  cases.unit("avg_pool1d", AvgPool1d(AvgPool1dOptions(3).stride(2).padding(1)), signal);
  cases.unit("avg_pool2d", AvgPool2d(AvgPool2dOptions({3, 2}).stride({2, 1}).padding({1, 0})), image);
  cases.unit("avg_pool2d_odd", AvgPool2d(AvgPool2dOptions(2).stride(1)), odd_image);
  cases.unit("avg_pool2d_exclude", AvgPool2d(AvgPool2dOptions(3).padding(1).count_include_pad(false)), image);
  cases.unit("avg_pool2d_ceil", AvgPool2d(AvgPool2dOptions(2).stride(2).padding(1).ceil_mode(true)), image);
  cases.unit("avg_pool2d_ceil_exclude",
             AvgPool2d(AvgPool2dOptions(3).stride(2).padding(1).ceil_mode(true).count_include_pad(false)), image);
  cases.unit("avg_pool2d_ceil_long", AvgPool2d(AvgPool2dOptions(3).stride(2).ceil_mode(true)), image);
  cases.unit("avg_pool2d_ceil_3", AvgPool2d(AvgPool2dOptions(3).stride(2).padding(1).ceil_mode(true)),
             plain({3, 2, 6, 8}));
  cases.unit("max_pool1d_ceil", MaxPool1d(MaxPool1dOptions(3).stride(3).ceil_mode(true)), plain({3, 2, 10}));
  cases.unit("max_pool2d_ceil_dilated", MaxPool2d(MaxPool2dOptions(2).stride(2).dilation(2).ceil_mode(true)), image);
  cases.unit("avg_pool3d", AvgPool3d(AvgPool3dOptions(2).stride(1)), volume);
  cases.one("avg_pool2d_unbatched", image, [](const Tensor& x) { return at::avg_pool2d(x.sum(0), 2); });
  cases.unit("adaptive_avg_pool1d", AdaptiveAvgPool1d(3), signal);
  cases.unit("adaptive_avg_pool2d", AdaptiveAvgPool2d(AdaptiveAvgPool2dOptions({7, 3})), image);
  cases.unit("adaptive_avg_pool2d_one", AdaptiveAvgPool2d(1), odd_image);
  cases.unit("adaptive_avg_pool3d", AdaptiveAvgPool3d(1), volume);
  cases.one("adaptive_avg_pool2d_unbatched", image, [](const Tensor& x) {
    return at::adaptive_avg_pool2d(x.sum(0), {7, 2});
  });
  const auto resized = [](std::vector<int64_t> size, bool linear, bool aligned) {
    return [=](const Tensor& x) {
      return linear ? at::upsample_bilinear2d(x, size, aligned) : at::upsample_nearest2d(x, size);
    };
  };
  cases.one("upsample_nearest", odd_image, resized({14, 12}, false, false));
  cases.one("upsample_nearest_uneven", image, resized({10, 4}, false, false));
  // Where the product of a pixel and the factor is nearly a whole number.
  for (const auto& [from, to] : {std::pair<int64_t, int64_t>{14, 2}, {14, 8}, {2, 82}, {6, 74}, {49, 7}, {7, 21}})
    cases.one(fmt::format("upsample_nearest_{}_to_{}", from, to), plain({3, 2, from, 3}),
              resized({to, 3}, false, false));
  cases.one("upsample_bilinear", image, resized({14, 9}, true, false));
  cases.one("upsample_bilinear_smaller", image, resized({3, 5}, true, false));
  cases.one("upsample_bilinear_aligned", image, resized({13, 4}, true, true));
  cases.one("upsample_bilinear_aligned_one", image, resized({1, 4}, true, true));
  cases.one("upsample_bilinear_nan", image.masked_fill(image == 1, kNan), resized({14, 12}, true, false));

  // ---- Normalisation
  const auto trained = [](auto norm, const Tensor& x) {
    norm->train();
    for (int i = 0; i < 3; ++i) norm->forward(x + i);
    const torch::NoGradGuard no_gradients;
    for (Tensor& parameter : norm->parameters()) parameter.copy_(plain(parameter.sizes()));
    return norm;
  };
  cases.unit("batch_norm", trained(BatchNorm2d(4), image), image);
  cases.unit("batch_norm_vector", trained(BatchNorm1d(5), plain({3, 5})), plain({3, 5}));
  cases.unit("batch_norm_plain", trained(BatchNorm1d(BatchNorm1dOptions(4).affine(false)), signal), signal);
  cases.unit("batch_norm_nan", trained(BatchNorm2d(4), image), odd_image);
  cases.unit("instance_norm", InstanceNorm2d(InstanceNorm2dOptions(4).affine(true)), image);
  cases.unit("instance_norm_plain", InstanceNorm1d(4), signal);
  cases.unit("instance_norm_tracked",
             trained(InstanceNorm2d(InstanceNorm2dOptions(4).affine(true).track_running_stats(true)), image), image);
  cases.unit("instance_norm_tracked_plain",
             trained(InstanceNorm1d(InstanceNorm1dOptions(4).track_running_stats(true)), signal), signal);
  cases.unit("instance_norm_nan", InstanceNorm2d(4), image.masked_fill(image == 1, kNan));
  cases.unit("instance_norm_constant", InstanceNorm2d(4), torch::full({3, 4, 2, 2}, 4.0F));
  cases.unit("group_norm", trained(GroupNorm(2, 4), image), image);
  cases.unit("group_norm_plain", GroupNorm(GroupNormOptions(4, 4).affine(false)), plain({3, 4}));
  cases.unit("group_norm_nan", GroupNorm(2, 4), image.masked_fill(image == 1, kNan));
  cases.unit("layer_norm", trained(LayerNorm(LayerNormOptions({7, 6})), image), image);
  cases.unit("layer_norm_plain", LayerNorm(LayerNormOptions({6}).elementwise_affine(false)), image);
  cases.unit("layer_norm_nan", LayerNorm(LayerNormOptions({6})), image.masked_fill(image == 1, kNan));
  cases.unit("layer_norm_constant", LayerNorm(LayerNormOptions({6})), torch::full({3, 6}, 5.0F));
  cases.unit("layer_norm_offset", LayerNorm(LayerNormOptions({6})), plain({3, 6}) + 1000);
  cases.unit("layer_norm_none", LayerNorm(LayerNormOptions({6})), plain({3, 0, 6}));
  cases.one("layer_norm_bias", plain({3, 6}),
            [](const Tensor& x) { return at::layer_norm(x, {6}, {}, torch::arange(6.0)); });
  cases.one("rms_norm", plain({3, 2, 6}),
            [](const Tensor& x) { return at::rms_norm(x, {6}, torch::arange(6.0), 1e-5); });
  cases.one("rms_norm_plain", plain({3, 2, 6}) * 1e-4, [](const Tensor& x) { return at::rms_norm(x, {2, 6}); });
  cases.one("rms_norm_zero", torch::zeros({3, 6}), [](const Tensor& x) { return at::rms_norm(x, {6}); });
  cases.one("rms_norm_odd", odd_numbers(), [](const Tensor& x) { return at::rms_norm(x, {6}, {}, 0.5); });
  cases.one("rms_norm_double", plain({3, 6}).to(at::kDouble) * 1e-9,
            [](const Tensor& x) { return at::rms_norm(x, {6}); });

  // ---- Recurrent networks
  const auto recurrent = [&cases](const std::string& name, auto net, const Tensor& x) {
    add_recurrent_case(cases, name, net, x);
  };
  recurrent("lstm", LSTM(LSTMOptions(4, 3).batch_first(true)), plain({3, 5, 4}));
  recurrent("lstm_deep", LSTM(LSTMOptions(4, 3).batch_first(true).num_layers(2).bidirectional(true)), plain({3, 5, 4}));
  recurrent("lstm_no_bias", LSTM(LSTMOptions(4, 3).batch_first(true).bias(false)), plain({3, 1, 4}) * 50);
  recurrent("gru", GRU(GRUOptions(4, 3).batch_first(true).num_layers(2)), plain({3, 5, 4}));
  recurrent("gru_both", GRU(GRUOptions(4, 3).batch_first(true).bidirectional(true).bias(false)), plain({3, 5, 4}));
  recurrent("rnn_tanh", RNN(RNNOptions(4, 3).batch_first(true).num_layers(2)), plain({3, 5, 4}));
  recurrent("rnn_relu", RNN(RNNOptions(4, 3).batch_first(true).nonlinearity(torch::kReLU).bidirectional(true)),
            plain({3, 5, 4}));
}

}  // namespace levin::testing
