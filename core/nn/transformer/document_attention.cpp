#include <levin/core/nn/transformer/document_attention.h>

#include <levin/core/base/permanent_library.h>
#include <levin/core/nn/transformer/attention_mask.h>
#include <levin/core/nn/transformer/block_operators.h>

#include <ATen/OpMathType.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <limits>
#include <tuple>
#include <vector>

namespace levin::nn::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

/// Places of a row that belong together.
struct Document {
  int64_t row = 0;
  int64_t begin = 0;
  int64_t length = 0;
  bool is_padding = false;
};

std::vector<Document> documents_of(const at::Tensor& positions) {
  const at::Tensor places = positions.to(at::kLong).contiguous();
  const auto* const place = places.const_data_ptr<int64_t>();
  const int64_t length = places.size(1);
  std::vector<Document> documents;
  for (int64_t row = 0; row < places.size(0); ++row)
    for (int64_t i = 0; i < length; ++i) {
      const int64_t at = row * length + i;
      const bool is_padding = place[at] < 0;
      const bool goes_on =
          i > 0 && (is_padding ? place[at - 1] < 0 : place[at - 1] >= 0 && place[at] == place[at - 1] + 1);
      if (goes_on)
        ++documents.back().length;
      else
        documents.push_back({.row = row, .begin = i, .length = 1, .is_padding = is_padding});
    }
  return documents;
}

/// Heads in groups that share keys and values.
struct Heads {
  Heads(const at::Tensor& queries, const at::Tensor& keys)
      : of_keys(keys.size(1)), in_group(queries.size(1) / keys.size(1)) {}

  /// A document's part of queries, or of what has their shape, as [key heads, heads of a group, length, D].
  at::Tensor of_queries(const at::Tensor& tensor, const Document& document) const {
    return of_document(tensor, document).unflatten(0, {of_keys, in_group});
  }
  /// Of keys or values, each for the whole group.
  at::Tensor shared(const at::Tensor& tensor, const Document& document) const {
    return of_document(tensor, document).unsqueeze(1).expand({-1, in_group, -1, -1});
  }
  static at::Tensor of_document(const at::Tensor& tensor, const Document& document) {
    return tensor.select(0, document.row).narrow(1, document.begin, document.length);
  }

  int64_t of_keys;
  int64_t in_group;
};

/// What is added to scores: the kernels and the plain computation take no bools.
at::Tensor added_mask(const at::Tensor& reached, const at::Tensor& queries) {
  return at::zeros(reached.sizes(), queries.options())
      .masked_fill_(reached.logical_not(), -std::numeric_limits<double>::infinity());
}

/// The mask of a document that is longer than the window.
std::optional<at::Tensor> window_mask(const Document& document, int64_t window, const at::Tensor& queries) {
  if (window == 0 || document.length <= window) return std::nullopt;
  const at::Tensor places = at::arange(document.length, queries.options().dtype(at::kLong));
  return added_mask(reach_mask(places, places, {.causal = true, .sliding_window = window}), queries);
}

/// Memory in which a token's heads lie together, as the next product reads them.
at::Tensor empty_by_token(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options()).transpose(1, 2);
}

at::Tensor with_contiguous_features(const at::Tensor& tensor) {
  return tensor.stride(-1) == 1 ? tensor : tensor.contiguous();
}

std::tuple<at::Tensor, at::Tensor> attend_documents(const at::Tensor& given_queries, const at::Tensor& given_keys,
                                                    const at::Tensor& given_values, const at::Tensor& positions,
                                                    int64_t window, std::optional<double> scale) {
  const at::Tensor queries = with_contiguous_features(given_queries);
  const at::Tensor keys = with_contiguous_features(given_keys);
  const at::Tensor values = with_contiguous_features(given_values);
  const Heads heads(queries, keys);
  at::Tensor output = empty_by_token(queries);
  // One document behind the other, [heads, length] each.
  at::Tensor logsumexp = at::empty({queries.size(0) * queries.size(1) * queries.size(2)},
                                   queries.options().dtype(at::toOpMathType(queries.scalar_type())));
  int64_t done = 0;
  for (const Document& document : documents_of(positions)) {
    const int64_t sums = queries.size(1) * document.length;
    const at::Tensor of_document = heads.of_queries(output, document);
    const at::Tensor own_sums = logsumexp.narrow(0, done, sums);
    done += sums;
    if (document.is_padding) {
      of_document.copy_(heads.shared(values, document));
      own_sums.zero_();
      continue;
    }
    const auto mask = window_mask(document, window, queries);
    const auto [attended, its_sums] = at::_scaled_dot_product_flash_attention_for_cpu(
        heads.of_queries(queries, document), heads.shared(keys, document), heads.shared(values, document),
        /*dropout_p=*/0, /*is_causal=*/!mask, mask, scale);
    of_document.copy_(attended);
    own_sums.copy_(its_sums.flatten());
  }
  return {std::move(output), std::move(logsumexp)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attend_documents_backward(
    const at::Tensor& given_slope, const at::Tensor& given_queries, const at::Tensor& given_keys,
    const at::Tensor& given_values, const at::Tensor& positions, const at::Tensor& output, const at::Tensor& logsumexp,
    int64_t window, std::optional<double> scale) {
  const at::Tensor slope = with_contiguous_features(given_slope);
  const at::Tensor queries = with_contiguous_features(given_queries);
  const at::Tensor keys = with_contiguous_features(given_keys);
  const at::Tensor values = with_contiguous_features(given_values);
  const Heads heads(queries, keys);
  at::Tensor query_slope = empty_by_token(queries);
  at::Tensor key_slope = empty_by_token(keys);
  at::Tensor value_slope = empty_by_token(values);
  int64_t done = 0;
  for (const Document& document : documents_of(positions)) {
    const at::Tensor own_slope = heads.of_queries(slope, document);
    const at::Tensor own_sums =
        logsumexp.narrow(0, done, queries.size(1) * document.length).view(own_slope.sizes().slice(0, 3));
    done += own_sums.numel();
    const at::Tensor of_queries = heads.of_queries(query_slope, document);
    const at::Tensor of_keys = Heads::of_document(key_slope, document);
    const at::Tensor of_values = Heads::of_document(value_slope, document);
    if (document.is_padding) {
      of_queries.zero_();
      of_keys.zero_();
      of_values.copy_(own_slope.sum(1));
      continue;
    }
    const auto mask = window_mask(document, window, queries);
    const auto [by_query, by_key, by_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        own_slope, heads.of_queries(queries, document), heads.shared(keys, document), heads.shared(values, document),
        heads.of_queries(output, document), own_sums, /*dropout_p=*/0, /*is_causal=*/!mask, mask, scale);
    of_queries.copy_(by_query);
    of_keys.copy_(heads.in_group == 1 ? by_key.squeeze(1) : by_key.sum(1));
    of_values.copy_(heads.in_group == 1 ? by_value.squeeze(1) : by_value.sum(1));
  }
  return {std::move(query_slope), std::move(key_slope), std::move(value_slope)};
}

/// Registered when they are first asked for.
struct DocumentOperators {
  DocumentOperators() {
    torch::Library& library = permanent_library(torch::Library::FRAGMENT, "levin", std::nullopt);
    library.def(
        "document_attention(Tensor queries, Tensor keys, Tensor values, Tensor positions, int sliding_window, float? "
        "scale) -> (Tensor, Tensor)");
    library.def(
        "document_attention_backward(Tensor slope, Tensor queries, Tensor keys, Tensor values, Tensor positions, "
        "Tensor output, Tensor logsumexp, int sliding_window, float? scale) -> (Tensor, Tensor, Tensor)");
    library.impl("document_attention", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(attend_documents)));
    library.impl("document_attention_backward",
                 torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(attend_documents_backward)));
    auto& dispatcher = c10::Dispatcher::singleton();
    forward = dispatcher.findSchemaOrThrow("levin::document_attention", "").typed<decltype(attend_documents)>();
    backward = dispatcher.findSchemaOrThrow("levin::document_attention_backward", "")
                   .typed<decltype(attend_documents_backward)>();
  }
  std::optional<c10::TypedOperatorHandle<decltype(attend_documents)>> forward;
  std::optional<c10::TypedOperatorHandle<decltype(attend_documents_backward)>> backward;
};

const DocumentOperators& document_operators() {
  static const DocumentOperators made;
  return made;
}

struct DocumentAttentionFunction : torch::autograd::Function<DocumentAttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values, const at::Tensor& positions, int64_t window,
                            std::optional<double> scale) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [output, logsumexp] = document_operators().forward->call(queries, keys, values, positions, window, scale);
    context->save_for_backward({queries, keys, values, positions, output, logsumexp});
    context->saved_data["window"] = window;
    context->saved_data["scale"] = scale;
    return output;
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& slopes) {
    const auto saved = context->get_saved_variables();
    const int64_t window = context->saved_data.at("window").toInt();
    const auto scale = context->saved_data.at("scale").toOptional<double>();
    tensor_list results(6);
    if (at::GradMode::is_enabled()) {
      // Of a loss of which the gradient is part, by operators of LibTorch.
      const at::Tensor mask = added_mask(self_mask(saved[3], {.causal = true, .sliding_window = window}), saved[0]);
      const at::Tensor output = std::get<0>(at::_scaled_dot_product_attention_math(
          saved[0], saved[1], saved[2], mask, /*dropout_p=*/0, /*is_causal=*/false, std::nullopt, scale,
          /*enable_gqa=*/true));
      std::vector<at::Tensor> inputs;
      for (size_t i = 0; i < 3; ++i)
        if (context->needs_input_grad(i)) inputs.push_back(saved[i]);
      const auto found = torch::autograd::grad({output}, inputs, {slopes[0]}, /*retain_graph=*/true,
                                               /*create_graph=*/true);
      for (size_t i = 0, next = 0; i < 3; ++i)
        if (context->needs_input_grad(i)) results[i] = found[next++];
      return results;
    }
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::tie(results[0], results[1], results[2]) = document_operators().backward->call(
        slopes[0], saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], window, scale);
    return results;
  }
};

}  // namespace

bool fits_document_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                             const at::Tensor& positions) {
  const auto type = queries.scalar_type();
  const bool has_type = type == at::kFloat || type == at::kBFloat16 || type == at::kDouble;
  const bool is_cast = at::autocast::is_autocast_enabled(at::kCPU) && type != at::kDouble &&
                       type != at::autocast::get_autocast_dtype(at::kCPU);
  return has_type && !is_cast && keys.scalar_type() == type && values.scalar_type() == type && positions.is_cpu() &&
         values.size(-1) == queries.size(-1) && is_followed_by_no_one(queries) && is_followed_by_no_one(keys) &&
         is_followed_by_no_one(values);
}

at::Tensor document_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                              const at::Tensor& positions, int64_t sliding_window, std::optional<double> scale) {
  return DocumentAttentionFunction::apply(queries, keys, values, positions, sliding_window, scale);
}

}  // namespace levin::nn::detail
