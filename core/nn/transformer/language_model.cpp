#include <levin/core/nn/transformer/language_model.h>

#include <levin/core/base/error.h>
#include <levin/core/nn/cut_sequence.h>
#include <levin/core/nn/linear_cross_entropy.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/nn/init.h>

#include <utility>

namespace levin::nn {
namespace {

at::Tensor make_embedding(int64_t rows, int64_t width, double std) {
  const at::Tensor weight = at::empty({rows, width});
  torch::nn::init::normal_(weight, 0, std);
  return weight;
}

/// Rows of a table. `what` and `hint`: for the message about an index that it lacks; a GPU says it in its own way.
at::Tensor rows_of(const at::Tensor& table, const at::Tensor& indices, const char* what, const char* hint) {
  try {
    return at::embedding(table, indices);
  } catch (const c10::Error&) {
    if (!indices.device().is_cpu() || !at::isIntegralType(indices.scalar_type(), /*includeBool=*/false)) throw;
    const at::Tensor wrong = indices.masked_select((indices < 0).logical_or(indices >= table.size(0)));
    if (wrong.numel() == 0) throw;
    throw Error("nn", fmt::format("{}; got {}, valid: 0 to {}; hint: {}", what, wrong[0].item<int64_t>(),
                                  table.size(0) - 1, hint));
  }
}

LanguageModelOptions checked_model(LanguageModelOptions options) {
  const auto fail = [](const std::string& what) { throw ConfigError("CausalLanguageModel: " + what); };
  if (options.vocabulary < 1 || options.layers < 1)
    fail(fmt::format("vocabulary and layers are at least 1; got {} and {}", options.vocabulary, options.layers));
  for (const auto* flags : {&options.has_sliding_window, &options.has_rotary})
    if (!flags->empty() && static_cast<int64_t>(flags->size()) != options.layers)
      fail(fmt::format("what is said by layer has an entry for each; got {} for {} layers", flags->size(),
                       options.layers));
  options.block.attention.causal = true;
  options.block.cross_attention = false;
  if (options.block.attention.initial_std == 0) options.block.attention.initial_std = options.initial_std;
  if (options.block.mlp.initial_std == 0) options.block.mlp.initial_std = options.initial_std;
  return options;
}

}  // namespace

TokenEmbeddingImpl::TokenEmbeddingImpl(const LanguageModelOptions& options) : scale_(options.embedding_scale) {
  const int64_t width = options.block.attention.width;
  embed_tokens = register_parameter("embed_tokens", make_embedding(options.vocabulary, width, options.initial_std));
  if (options.learned_positions > 0)
    embed_positions =
        register_parameter("embed_positions", make_embedding(options.learned_positions, width, options.initial_std));
  if (options.embedding_dropout > 0)
    dropout = register_module("dropout", torch::nn::Dropout(options.embedding_dropout));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> TokenEmbeddingImpl::forward(const at::Tensor& tokens,
                                                                           const at::Tensor& positions,
                                                                           const at::Tensor& targets) {
  at::Tensor x = rows_of(embed_tokens, tokens, "a token is not in the vocabulary of the model",
                         "the tokenizer may be that of another model");
  if (scale_ != 1) x = x * scale_;
  if (embed_positions.defined())
    x = x + rows_of(embed_positions, positions.clamp_min(0), "a text is longer than the positions of the model",
                    "shorter texts");
  return {dropout ? dropout(x) : x, positions, targets};
}

LanguageModelHeadImpl::LanguageModelHeadImpl(const LanguageModelOptions& options, const at::Tensor& tied) {
  const int64_t width = options.block.attention.width;
  norm = register_module("norm", BlockNorm(BlockNormOptions{.kind = options.block.norm,
                                                            .size = width,
                                                            .eps = options.block.norm_eps,
                                                            .weight_is_offset = options.block.norm_weight_is_offset}));
  lm_head = register_parameter("lm_head",
                               tied.defined() ? tied : make_embedding(options.vocabulary, width, options.initial_std));
}

at::Tensor LanguageModelHeadImpl::forward(const at::Tensor& x, const at::Tensor& /*positions*/,
                                          const at::Tensor& targets) {
  const at::Tensor normalized = norm(x);
  return targets.numel() == 0 ? at::linear(normalized, lm_head)
                              : functional::linear_cross_entropy(normalized, lm_head, targets);
}

TensorPlan TokenEmbeddingImpl::tensor_plan() const {
  return {{.pattern = "embed_tokens", .cut = TensorCut::kVocabulary}};
}

TensorPlan LanguageModelHeadImpl::tensor_plan() const {
  return {{.pattern = "lm_head", .cut = TensorCut::kVocabulary}};
}

CausalLanguageModelImpl::CausalLanguageModelImpl(const LanguageModelOptions& options)
    : options_(checked_model(options)) {
  const auto rotary_of = [](const std::optional<RotaryOptions>& rotary) {
    return rotary ? RotaryEmbedding(*rotary) : RotaryEmbedding(nullptr);
  };
  const RotaryEmbedding rotary = rotary_of(options_.rotary);
  const RotaryEmbedding sliding_rotary = options_.sliding_rotary ? rotary_of(options_.sliding_rotary) : rotary;
  Sequential members;
  const TokenEmbedding embedding(options_);
  members->push_back(embedding);
  for (int64_t layer = 0; layer < options_.layers; ++layer) {
    const auto index = static_cast<size_t>(layer);
    TransformerBlockOptions block = options_.block;
    if (!options_.has_sliding_window.empty() && !options_.has_sliding_window[index]) block.attention.sliding_window = 0;
    const bool rotates = options_.has_rotary.empty() || options_.has_rotary[index];
    const RotaryEmbedding& own = block.attention.sliding_window > 0 ? sliding_rotary : rotary;
    members->push_back(DecoderLayer(block, rotates ? own : RotaryEmbedding(nullptr)));
  }
  members->push_back(LanguageModelHead(options_, options_.tie_embeddings ? embedding->embed_tokens : at::Tensor()));
  net = register_module("net", members);
}

std::vector<at::Tensor> CausalLanguageModelImpl::inputs_of(const at::Tensor& tokens, at::Tensor positions,
                                                           const at::Tensor& targets) const {
  if (tokens.dim() != 2) throw Error("nn", fmt::format("tokens are [N, T]; got {} dimensions", tokens.dim()));
  const int64_t length = full_sequence_length(tokens);
  if (options_.learned_positions > 0 && length > options_.learned_positions)
    throw Error("nn", fmt::format("a text is longer than the positions of the model; got {} tokens, valid: up to {}",
                                  length, options_.learned_positions));
  if (!positions.defined()) positions = at::arange(length, tokens.options().dtype(at::kLong));
  return {tokens, full_sequence(positions),
          targets.defined() ? targets : at::empty({0}, tokens.options().dtype(at::kLong))};
}

at::Tensor CausalLanguageModelImpl::forward(const at::Tensor& tokens, const at::Tensor& positions) {
  std::vector<at::Tensor> inputs = inputs_of(tokens, positions, {});
  const RotaryScope scope;
  return net->forward_all(std::move(inputs)).front();
}

at::Tensor CausalLanguageModelImpl::last_logits(const at::Tensor& tokens, const at::Tensor& positions) {
  std::vector<at::Tensor> inputs = inputs_of(tokens, positions, {});
  const RotaryScope scope;
  if (net->runner() != nullptr) return net->forward_all(std::move(inputs)).front().select(1, -1);
  inputs = net->forward_range(std::move(inputs), 0, net->size() - 1);
  at::Tensor& x = inputs.front();
  x = x.narrow(1, x.size(1) - 1, 1);
  return net->forward_range(std::move(inputs), net->size() - 1, net->size()).front().squeeze(1);
}

at::Tensor CausalLanguageModelImpl::loss(const at::Tensor& tokens, const at::Tensor& targets,
                                         const at::Tensor& positions) {
  if (targets.sizes() != tokens.sizes())
    throw Error("nn", fmt::format("targets have the sizes of tokens; got {} for {}", c10::str(targets.sizes()),
                                  c10::str(tokens.sizes())));
  std::vector<at::Tensor> inputs = inputs_of(tokens, positions, targets);
  const RotaryScope scope;
  return net->forward_all(std::move(inputs)).front();
}

}  // namespace levin::nn
