#include <levin/core/nn/context_attention.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/all_to_all.h>
#include <levin/core/comm/collective.h>
#include <levin/core/nn/kept_group.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <tuple>
#include <utility>
#include <vector>

namespace levin::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Of tensors [N, heads, T / ranks, features], which may differ in heads and features, to [N, heads / ranks, T,
/// features], all in one exchange.
std::vector<at::Tensor> exchange_for_heads(Collective& group, const variable_list& tensors) {
  const int64_t ranks = group.world_size();
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors)
    parts.push_back(tensor.unflatten(1, {ranks, -1}).movedim(1, 0).reshape({ranks, -1}));
  const at::Tensor received = all_to_all(group, at::cat(parts, 1));
  std::vector<at::Tensor> results;
  int64_t begin = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::IntArrayRef sizes = tensors[i].sizes();
    results.push_back(received.narrow(1, begin, parts[i].size(1))
                          .view({ranks, sizes[0], sizes[1] / ranks, sizes[2], sizes[3]})
                          .permute({1, 2, 0, 3, 4})
                          .reshape({sizes[0], sizes[1] / ranks, ranks * sizes[2], sizes[3]}));
    begin += parts[i].size(1);
  }
  return results;
}

/// And back.
std::vector<at::Tensor> exchange_for_positions(Collective& group, const variable_list& tensors) {
  const int64_t ranks = group.world_size();
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors)
    parts.push_back(tensor.unflatten(2, {ranks, -1}).movedim(2, 0).reshape({ranks, -1}));
  const at::Tensor received = all_to_all(group, at::cat(parts, 1));
  std::vector<at::Tensor> results;
  int64_t begin = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::IntArrayRef sizes = tensors[i].sizes();
    results.push_back(received.narrow(1, begin, parts[i].size(1))
                          .view({ranks, sizes[0], sizes[1], sizes[2] / ranks, sizes[3]})
                          .transpose(0, 1)
                          .reshape({sizes[0], ranks * sizes[1], sizes[2] / ranks, sizes[3]}));
    begin += parts[i].size(1);
  }
  return results;
}

struct ExchangeForHeads : torch::autograd::Function<ExchangeForHeads> {
  static variable_list forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, const std::shared_ptr<Collective>& group) {
    keep_group(*context, group);
    return exchange_for_heads(*group, {query, key, value});
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivatives_of_context();
    variable_list results = exchange_for_positions(*kept_group(*context), gradients);
    results.emplace_back();
    return results;
  }
};

struct ExchangeForPositions : torch::autograd::Function<ExchangeForPositions> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& output,
                            const std::shared_ptr<Collective>& group) {
    keep_group(*context, group);
    return exchange_for_positions(*group, {output}).front();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivatives_of_context();
    return {exchange_for_heads(*kept_group(*context), gradients).front(), at::Tensor()};
  }
};

void require_heads(int64_t heads, const char* of, int64_t ranks) {
  if (heads % ranks == 0) return;
  std::string fewer;
  for (int64_t size = ranks - 1; size > 1; --size)
    if (heads % size == 0) {
      fewer = fmt::format(", or over {} ranks", size);
      break;
    }
  throw Error("context", fmt::format("attention with {} heads{} cannot be divided over {} ranks; valid: a multiple of "
                                     "{} (the next is {}){}; hint: a smaller size of context",
                                     heads, of, ranks, ranks, (heads / ranks + 1) * ranks, fewer));
}

/// The part of a mask of this rank's heads.
at::Tensor mask_of_heads(const at::Tensor& mask, int64_t heads, int64_t first, int64_t here) {
  if (mask.dim() < 3 || mask.size(-3) == 1) return mask;
  return mask.size(-3) == heads ? mask.narrow(-3, first, here) : mask;
}

/// Whole on each rank, of which this one takes its heads: the numbers of one device.
at::Tensor dropout_mask(const ContextAttention& attention, const at::Tensor& query, int64_t heads, int64_t first) {
  const at::NoGradGuard no_grad;
  const at::Tensor ones = at::ones({query.size(0), heads, query.size(2), query.size(2)}, query.options());
  return at::dropout(ones, attention.dropout, /*train=*/true).narrow(1, first, query.size(1)).ne(0);
}

/// LibTorch says once of a given mask that it is for tests.
struct NoMaskWarning : c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

}  // namespace

void refuse_second_derivatives_of_context() {
  if (c10::GradMode::is_enabled())
    throw Error(
        "context",
        "gradients of gradients do not pass through a sequence that is cut over ranks; hint: leave context out");
}

at::Tensor attend_over_context(const ContextAttention& attention, const std::shared_ptr<Collective>& group) {
  const int64_t ranks = group->world_size();
  const int64_t heads = attention.query.size(1);
  require_heads(heads, "", ranks);
  if (attention.key.size(1) != heads) require_heads(attention.key.size(1), " of keys", ranks);
  if (attention.value.size(1) != heads) require_heads(attention.value.size(1), " of values", ranks);

  const variable_list whole = ExchangeForHeads::apply(attention.query, attention.key, attention.value, group);
  const at::Tensor& query = whole[0];
  const int64_t first = group->rank() * query.size(1);
  std::optional<at::Tensor> mask;
  if (attention.mask) mask = mask_of_heads(*attention.mask, heads, first, query.size(1));
  at::Tensor output;
  if (attention.dropout > 0) {
    NoMaskWarning handler;
    const c10::WarningUtils::WarningHandlerGuard silence(&handler);
    if (mask && mask->scalar_type() == at::kBool)  // this operator would add truth values
      mask = at::zeros(mask->sizes(), query.options())
                 .masked_fill(mask->logical_not(), -std::numeric_limits<double>::infinity());
    output = std::get<0>(at::_scaled_dot_product_attention_math(
        query, whole[1], whole[2], mask, attention.dropout, attention.causal,
        dropout_mask(attention, query, heads, first), attention.scale, attention.grouped));
  } else {
    output = at::scaled_dot_product_attention(query, whole[1], whole[2], mask, 0, attention.causal, attention.scale,
                                              attention.grouped);
  }
  return ExchangeForPositions::apply(output, group);
}

}  // namespace levin::detail
