#include <levin/core/optim/adamw8bit.h>

#include <levin/core/base/error.h>
#include <levin/core/optim/block_quantization.h>
#include <levin/core/optim/element_update.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace levin::optim {

void AdamW8bitOptions::describe(Schema<AdamW8bitOptions>& schema) {
  using O = AdamW8bitOptions;
  schema.field("lr", &O::lr, "learning rate").at_least(0);
  schema.field("betas", &O::betas, "decay rates of the means of the gradient and of its square")
      .require("two numbers from 0 to below 1", [](const std::array<double, 2>& betas) {
        return betas[0] >= 0 && betas[0] < 1 && betas[1] >= 0 && betas[1] < 1;
      });
  schema.field("eps", &O::eps, "added to the denominator").at_least(0);
  schema.field("weight_decay", &O::weight_decay, "decoupled weight decay").at_least(0);
  schema.field("min_8bit_size", &O::min_8bit_size, "smallest tensor (elements) with state of 8 bits").at_least(1);
  schema.field("maximize", &O::maximize, "ascend instead of descend");
}

AdamW8bit::AdamW8bit(std::vector<at::Tensor> params, const AdamW8bitOptions& options)
    : ElementOptimizerOf("adamw8bit", {{std::move(params), options}}, options) {}
AdamW8bit::AdamW8bit(Groups groups) : ElementOptimizerOf("adamw8bit", std::move(groups)) {}

namespace {

constexpr StateField kAdamW8bitFields[] = {{"exp_avg"}, {"exp_avg_sq"}, {"scales"}};

/// Of each mean, in the order of the fields and of the rows of the scales.
constexpr std::array kRanges = {QuantizedRange::kSigned, QuantizedRange::kNonNegative};

struct AdamW8bitFormula {
  double sign, kept, rate, root_correction, eps;
  std::array<double, 2> betas;

  template <class V>
  LEVIN_INLINE void operator()(V& param, const V& grad, V& mean, V& square, V& /*unused*/) const {
    using C = detail::Constant<V>;
    const V gradient = grad * C(sign);
    mean = mean * C(betas[0]) + gradient * C(1 - betas[0]);
    square = square * C(betas[1]) + gradient * gradient * C(1 - betas[1]);
    param = param * C(kept) - mean * C(rate) / (detail::square_root(square) * C(root_correction) + C(eps));
  }
};

/// A block after another, whose means are never in memory.
void update_blocks(const at::Tensor& param, const at::Tensor& grad, const std::array<at::Tensor, 3>& states,
                   const AdamW8bitFormula& formula) {
  auto* const loop = detail::find_element_loop<2, float, AdamW8bitFormula>();
  auto* const p = param.mutable_data_ptr<float>();
  const auto* const g = grad.const_data_ptr<float>();
  const std::array<uint8_t*, 2> codes = {states[0].mutable_data_ptr<uint8_t>(), states[1].mutable_data_ptr<uint8_t>()};
  const int64_t elements = param.numel();
  const int64_t blocks = quantization_blocks(elements);
  auto* const scales = states[2].mutable_data_ptr<float>();
  at::parallel_for(0, blocks, kQuantizationGrain, [&](int64_t begin, int64_t end) {
    std::array<std::array<float, kQuantizationBlock>, 2> means;
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kQuantizationBlock;
      const int64_t count = std::min(kQuantizationBlock, elements - first);
      for (size_t i = 0; i < means.size(); ++i)
        dequantize_block(codes[i] + first, scales[static_cast<int64_t>(i) * blocks + block], means[i].data(), count,
                         kRanges[i]);
      loop(p + first, g + first, means[0].data(), means[1].data(), nullptr, count, formula);
      for (size_t i = 0; i < means.size(); ++i)
        scales[static_cast<int64_t>(i) * blocks + block] =
            quantize_block(means[i].data(), codes[i] + first, count, kRanges[i]);
    }
  });
}

}  // namespace

std::span<const StateField> AdamW8bit::state_fields(size_t /*group*/) const { return kAdamW8bitFields; }

std::optional<std::vector<int64_t>> AdamW8bit::state_sizes(size_t group, const StateField& field,
                                                           const at::Tensor& param) const {
  if (std::string_view(field.name) != "scales") return param.sizes().vec();
  if (!is_quantized(group, param)) return std::nullopt;
  return std::vector<int64_t>{2, quantization_blocks(param.numel())};
}

c10::ScalarType AdamW8bit::state_type(size_t group, const StateField& field, const at::Tensor& param) const {
  if (is_quantized(group, param)) return std::string_view(field.name) == "scales" ? at::kFloat : at::kByte;
  return param.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void AdamW8bit::update_parameter(const AdamW8bitOptions& options, double step, const at::Tensor& param,
                                 const at::Tensor& grad, const std::array<at::Tensor, 3>& states) {
  const AdamW8bitFormula formula{.sign = options.maximize ? -1.0 : 1.0,
                                 .kept = 1 - options.lr * options.weight_decay,
                                 .rate = options.lr / (1 - std::pow(options.betas[0], step)),
                                 .root_correction = 1 / std::sqrt(1 - std::pow(options.betas[1], step)),
                                 .eps = options.eps,
                                 .betas = options.betas};
  const auto& [means, squares, scales] = states;
  if (!scales.defined()) return detail::update_elements<2>(param, grad, states, formula);
  if (param.is_cpu() && param.scalar_type() == at::kFloat) return update_blocks(param, grad, states, formula);
  at::Tensor value = param.to(at::kFloat);
  at::Tensor mean = dequantize(means, scales[0], kRanges[0]);
  at::Tensor square = dequantize(squares, scales[1], kRanges[1]);
  at::Tensor unused;
  formula(value, grad.to(at::kFloat), mean, square, unused);
  param.copy_(value);
  quantize(mean, means, scales[0], kRanges[0]);
  quantize(square, squares, scales[1], kRanges[1]);
}

State AdamW8bit::held_states(const ParameterNames& names) const { return FusedOptimizer::parameter_states(names); }

State AdamW8bit::parameter_states(const ParameterNames& names) const {
  const c10::InferenceMode normal_mode(false);
  State states = held_states(names);
  for (auto& [name, fields] : states.as_map()) {
    const State* const scales = fields.find("scales");
    if (scales == nullptr) continue;
    const at::Tensor of_host = scales->as_tensor().cpu();
    for (size_t i = 0; i < kRanges.size(); ++i) {
      State& field = fields[kAdamW8bitFields[i].name];
      field = dequantize(field.as_tensor().cpu(), of_host[static_cast<int64_t>(i)], kRanges[i]);
    }
    fields.as_map().erase("scales");
  }
  return states;
}

void AdamW8bit::load_parameter_states(const ParameterNames& names, const State& states) {
  const c10::InferenceMode normal_mode(false);
  const at::NoGradGuard no_grad;
  State quantized = states;
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    for (const auto& param : param_groups_[group].params()) {
      const auto found = quantized.as_map().find(names.require(param));
      if (found == quantized.as_map().end() || !is_quantized(group, param)) continue;
      State& fields = found->second;
      const at::Tensor like_param = at::empty_like(param, at::TensorOptions().dtype(at::kFloat).device(at::kCPU));
      const at::Tensor scales = at::empty({2, quantization_blocks(param.numel())}, at::kFloat);
      for (size_t i = 0; i < kRanges.size(); ++i) {
        const char* const field = kAdamW8bitFields[i].name;
        at::Tensor values = at::empty_like(like_param);
        copy_in_place(values, fields.at(field).as_tensor(), found->first + "." + field);
        const at::Tensor codes = at::empty_like(values, at::TensorOptions().dtype(at::kByte));
        quantize(values, codes, scales[static_cast<int64_t>(i)], kRanges[i]);
        fields[field] = codes;
      }
      fields["scales"] = scales;
    }
  }
  FusedOptimizer::load_parameter_states(names, quantized);
}

}  // namespace levin::optim
