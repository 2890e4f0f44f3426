#include <levin/core/nn/transformer/attention.h>

#include <levin/core/base/error.h>
#include <levin/core/nn/cut_sequence.h>
#include <levin/core/nn/transformer/attention_mask.h>
#include <levin/core/nn/transformer/document_attention.h>
#include <levin/core/nn/transformer/key_value_cache.h>
#include <levin/core/nn/transformer/linear_layer.h>
#include <levin/core/nn/transformer/token_kernels.h>

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>
#include <vector>

namespace levin::nn {
namespace {

AttentionOptions checked(AttentionOptions options) {
  const auto fail = [](const std::string& what) { throw ConfigError("Attention: " + what); };
  if (options.width < 1 || options.heads < 1)
    fail(fmt::format("width and heads are at least 1; got {} and {}", options.width, options.heads));
  if (options.key_value_heads == 0) options.key_value_heads = options.heads;
  if (options.head_dim == 0) {
    if (options.width % options.heads != 0)
      fail(fmt::format("width is a multiple of heads where head_dim is not given; got {} and {}", options.width,
                       options.heads));
    options.head_dim = options.width / options.heads;
  }
  if (options.key_value_heads < 1 || options.heads % options.key_value_heads != 0)
    fail(fmt::format("heads is a multiple of key_value_heads; got {} and {}", options.heads, options.key_value_heads));
  if (options.sliding_window < 0 || (options.sliding_window > 0 && !options.causal))
    fail(fmt::format("sliding_window is of causal attention, and 0 or above; got {}", options.sliding_window));
  if (options.memory_width == 0) options.memory_width = options.width;
  if (options.initial_output_std == 0) options.initial_output_std = options.initial_std;
  return options;
}

/// Other sizes would be broadcast to more tokens than there are.
void check_positions(const at::Tensor& positions, const at::Tensor& x) {
  const bool fits = (positions.dim() == 1 || (positions.dim() == 2 && positions.size(0) == x.size(0))) &&
                    positions.size(-1) == full_sequence_length(x);
  if (!fits)
    throw Error("nn", fmt::format("positions are [T] or [N, T] of x [N, T, width]; got {} for {}",
                                  c10::str(positions.sizes()), c10::str(x.sizes())));
}

RMSNorm make_norm(const AttentionOptions& options, int64_t heads) {
  const int64_t size = options.query_key_norm == QueryKeyNorm::kHead ? options.head_dim : heads * options.head_dim;
  return RMSNorm(
      RMSNormOptions{.size = size, .eps = options.norm_eps, .weight_is_offset = options.norm_weight_is_offset});
}

}  // namespace

AttentionBase::AttentionBase(const AttentionOptions& options, RotaryEmbedding rotary)
    : options_(checked(options)), rotary_(std::move(rotary)) {
  const int64_t queries = options_.heads * options_.head_dim;
  const int64_t keys = options_.key_value_heads * options_.head_dim;
  if (rotary_ && rotary_->options().dim > options_.head_dim)
    throw ConfigError(fmt::format("Attention: the rotary embedding has at most head_dim features; got {} for {}",
                                  rotary_->options().dim, options_.head_dim));
  const auto project = [&](const char* name, int64_t in, int64_t out) {
    return register_module(name, detail::make_linear(in, out, options_.bias, options_.initial_std));
  };
  q_proj = project("q_proj", options_.width, queries);
  k_proj = project("k_proj", options_.memory_width, keys);
  v_proj = project("v_proj", options_.memory_width, keys);
  o_proj = register_module(
      "o_proj", detail::make_linear(queries, options_.width, options_.output_bias, options_.initial_output_std));
  if (options_.query_key_norm == QueryKeyNorm::kNone) return;
  q_norm = register_module("q_norm", make_norm(options_, options_.heads));
  k_norm = register_module("k_norm", make_norm(options_, options_.key_value_heads));
}

at::Tensor AttentionBase::forward(const at::Tensor& x, const AttentionInputs& inputs) {
  const bool is_cross = inputs.memory.defined();
  const at::Tensor& source = is_cross ? inputs.memory : x;
  at::Tensor positions = inputs.positions;
  if (!positions.defined()) positions = at::arange(full_sequence_length(x), x.options().dtype(at::kLong));
  check_positions(positions, x);

  at::Tensor queries = q_proj(x);
  at::Tensor keys = k_proj(source);
  at::Tensor values = v_proj(source);
  if (!is_cross && options_.causal && !inputs.mask.defined() && !(is_training() && options_.dropout > 0) &&
      takes_token_kernels(queries) && takes_token_kernels(keys) && takes_token_kernels(values))
    return o_proj(attend_token(queries, keys, values, positions));

  const auto by_head = [&](at::Tensor projected, RMSNorm& norm) {
    if (norm && options_.query_key_norm == QueryKeyNorm::kProjection) projected = norm(projected);
    projected = projected.unflatten(-1, {-1, options_.head_dim});
    if (norm && options_.query_key_norm == QueryKeyNorm::kHead) projected = norm(projected);
    return projected.transpose(1, 2);
  };
  RMSNorm none{nullptr};
  queries = by_head(queries, q_norm);
  keys = by_head(keys, k_norm);
  values = by_head(values, none);
  if (rotary_ && !is_cross) {
    queries = rotary_(queries, positions);
    keys = rotary_(keys, positions);
  }

  at::Tensor mask;
  bool is_causal = false;
  if (is_cross) {
    if (inputs.memory_mask.defined()) mask = inputs.memory_mask.unsqueeze(1).unsqueeze(1);
  } else if (KeyValueCache::Step* const step = KeyValueCache::Step::current(); step != nullptr && options_.causal) {
    auto attended = step->extend(this, options_.sliding_window, keys, values);
    keys = std::move(attended.keys);
    values = std::move(attended.values);
    mask = std::move(attended.mask);
    is_causal = attended.is_causal;
  } else {
    const bool drops = is_training() && options_.dropout > 0;
    if (positions.dim() == 2 && options_.causal && !drops && !inputs.mask.defined() &&
        detail::fits_document_attention(queries, keys, values, positions))
      return o_proj(
          detail::document_attention(queries, keys, values, positions, options_.sliding_window, options_.scale)
              .transpose(1, 2)
              .flatten(2));
    const AttentionReach reach{options_.causal, options_.sliding_window};
    const bool has_window = options_.sliding_window > 0 && options_.sliding_window < full_sequence_length(x);
    if (positions.dim() == 2)
      mask = self_mask(positions, reach);
    else if (has_window)
      mask = reach_mask(positions, positions, reach);
    else
      is_causal = options_.causal && full_sequence_length(x) > 1;
  }
  if (inputs.mask.defined()) {
    if (is_causal) {
      const at::Tensor places = at::arange(full_sequence_length(x), x.options().dtype(at::kLong));
      mask = reach_mask(places, places, {});
      is_causal = false;
    }
    mask = both_masks(mask, inputs.mask);
  }
  if (mask.defined() && mask.scalar_type() != at::kBool) mask = mask.to(queries.scalar_type());

  const at::Tensor mixed = at::scaled_dot_product_attention(
      queries, keys, values, mask.defined() ? std::optional<at::Tensor>(mask) : std::nullopt,
      is_training() ? options_.dropout : 0.0, is_causal, options_.scale,
      /*enable_gqa=*/queries.size(1) != keys.size(1));
  return o_proj(mixed.transpose(1, 2).flatten(2));
}

TensorPlan AttentionBase::tensor_plan() const {
  if (options_.query_key_norm != QueryKeyNorm::kNone)
    throw ConfigError("Attention: query_key_norm cannot be cut over ranks; valid: kNone");
  const auto cut = [](const char* pattern, TensorCut how, int64_t heads) {
    return TensorRule{.pattern = pattern, .cut = how, .heads = heads};
  };
  return {cut("q_proj", TensorCut::kColumn, options_.heads),
          cut("k_proj", TensorCut::kColumn, options_.key_value_heads),
          cut("v_proj", TensorCut::kColumn, options_.key_value_heads), cut("o_proj", TensorCut::kRow, options_.heads)};
}

at::Tensor AttentionBase::attend_token(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                                       const at::Tensor& positions) {
  if (q_norm) {
    q_norm->normalize_(queries);
    k_norm->normalize_(keys);
  }
  const auto by_head = [&](const at::Tensor& projected) {
    return projected.view({projected.size(0), 1, -1, options_.head_dim});
  };
  const at::Tensor rotated = by_head(queries);
  const at::Tensor own_keys = by_head(keys);
  if (rotary_) {
    rotary_->rotate_(rotated, positions);
    rotary_->rotate_(own_keys, positions);
  }
  const auto attended = KeyValueCache::Step::current()->extend(this, options_.sliding_window, own_keys.transpose(1, 2),
                                                               by_head(values).transpose(1, 2));
  const at::Tensor mask = attended.mask.defined() ? attended.mask.contiguous() : at::Tensor();
  at::Tensor mixed = at::empty_like(queries);
  const detail::CachedAttention attention{
      .queries = queries.const_data_ptr<float>(),
      .keys = attended.keys.const_data_ptr<float>(),
      .values = attended.values.const_data_ptr<float>(),
      .row_stride = attended.keys.stride(0),
      .head_stride = attended.keys.stride(1),
      .mask = mask.defined() ? mask.const_data_ptr<bool>() : nullptr,
      .output = mixed.mutable_data_ptr<float>(),
      .heads = rotated.size(2),
      .key_value_heads = own_keys.size(2),
      .places = attended.keys.size(2),
      .head_dim = options_.head_dim,
      .scale = static_cast<float>(options_.scale.value_or(1 / std::sqrt(static_cast<double>(options_.head_dim))))};
  const int64_t room = attention.heads / attention.key_value_heads * attention.places;
  at::parallel_for(0, queries.size(0) * attention.key_value_heads, 1 + 16'384 / (room * options_.head_dim),
                   [&](int64_t begin, int64_t end) {
                     std::vector<float> scores(static_cast<size_t>(room));
                     for (int64_t i = begin; i < end; ++i) detail::attend_to_cache(attention, i, scores.data());
                   });
  return mixed;
}

}  // namespace levin::nn
