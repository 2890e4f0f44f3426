#include "gpt.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace example {

namespace {

namespace F = torch::nn::functional;

constexpr double kInitialStd = 0.02;

/// What is added to the residual stream starts smaller the deeper the network is, so that the sum does not grow.
double residual_std(const GptOptions& options) {
  return kInitialStd / std::sqrt(2.0 * static_cast<double>(options.layers));
}

/// Initialised by its unit's constructor, so that a unit can be built anywhere on its own.
torch::nn::Linear make_linear(int64_t in, int64_t out, double std) {
  torch::nn::Linear linear(in, out);
  torch::nn::init::normal_(linear->weight, 0, std);
  torch::nn::init::zeros_(linear->bias);
  return linear;
}

torch::nn::LayerNorm make_norm(int64_t width) { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})); }

/// Mean over all tokens of the batch.
torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& targets) {
  return F::cross_entropy(logits.flatten(0, 1), targets.flatten());
}

}  // namespace

void GptOptions::describe(levin::Schema<GptOptions>& schema) {
  using O = GptOptions;
  schema.field("vocabulary", &O::vocabulary, "tokens told apart; at least those of the data").at_least(1);
  schema.field("context", &O::context, "tokens that it can look back to, and the most in a row of a batch").at_least(1);
  schema.field("layers", &O::layers, "blocks").at_least(1);
  schema.field("width", &O::width, "features of a token between blocks; a multiple of heads").at_least(1);
  schema.field("heads", &O::heads, "attention heads of a block").at_least(1);
  schema.field("dropout", &O::dropout, "share of the features and attention weights left out while training")
      .at_least(0)
      .below(1);
  schema.field("tie_weights", &O::tie_weights, "the head uses the weights of the token embedding");
  schema.field("lr", &O::lr, "AdamW's learning rate after the warm-up, from which it falls to 0 along half a cosine")
      .above(0);
  schema.field("weight_decay", &O::weight_decay, "of matrices; biases and norms have none").at_least(0);
  schema.field("warmup_steps", &O::warmup_steps, "steps in which the learning rate rises").at_least(1);
  schema.field("sample_length", &O::sample_length, "tokens that prediction appends").at_least(1);
  schema.field("temperature", &O::temperature, "below 1 prediction prefers likely tokens; 0: always the likeliest one")
      .at_least(0);
}

EmbeddingImpl::EmbeddingImpl(const GptOptions& options) {
  tokens = register_module("tokens", torch::nn::Embedding(options.vocabulary, options.width));
  positions = register_parameter("positions", torch::empty({options.context, options.width}));
  dropout = register_module("dropout", torch::nn::Dropout(options.dropout));
  torch::nn::init::normal_(tokens->weight, 0, kInitialStd);
  torch::nn::init::normal_(positions, 0, kInitialStd);
}

torch::Tensor EmbeddingImpl::forward(const torch::Tensor& text) {
  const int64_t length = levin::full_sequence_length(text);  // of all ranks, where these divide sequences
  if (length > positions.size(0))
    throw levin::Error("gpt", "a batch has rows of " + std::to_string(length) + " tokens; valid: at most " +
                                  std::to_string(positions.size(0)) +
                                  "; hint: model.context must be at least data.context");
  return dropout(tokens(text) + positions.slice(0, 0, length));
}

levin::TensorPlan EmbeddingImpl::tensor_plan() const {
  return {{.pattern = "tokens", .cut = levin::TensorCut::kVocabulary}};
}

BlockImpl::BlockImpl(const GptOptions& options)
    : heads_(options.heads), head_width_(options.width / options.heads), attention_dropout_(options.dropout) {
  const int64_t width = options.width;
  attention_norm = register_module("attention_norm", make_norm(width));
  queries_keys_values = register_module("queries_keys_values", make_linear(width, 3 * width, kInitialStd));
  attention_out = register_module("attention_out", make_linear(width, width, residual_std(options)));
  mlp_norm = register_module("mlp_norm", make_norm(width));
  mlp_in = register_module("mlp_in", make_linear(width, 4 * width, kInitialStd));
  mlp_out = register_module("mlp_out", make_linear(4 * width, width, residual_std(options)));
  dropout = register_module("dropout", torch::nn::Dropout(options.dropout));
}

torch::Tensor BlockImpl::forward(const torch::Tensor& x) {
  const torch::Tensor y = x + dropout(attention(attention_norm(x)));
  return y + dropout(mlp_out(torch::gelu(mlp_in(mlp_norm(y)), "tanh")));
}

levin::TensorPlan BlockImpl::tensor_plan() const {
  using Cut = levin::TensorCut;
  return {{.pattern = "queries_keys_values", .cut = Cut::kColumn, .parts = 3, .heads = heads_},
          {.pattern = "attention_out", .cut = Cut::kRow, .heads = heads_},
          {.pattern = "mlp_in", .cut = Cut::kColumn},
          {.pattern = "mlp_out", .cut = Cut::kRow}};
}

torch::Tensor BlockImpl::attention(const torch::Tensor& x) {
  // Three times [N, heads, T, width / heads]; -1: the heads that this rank has.
  const auto parts = queries_keys_values(x).unflatten(2, {3, -1, head_width_}).permute({2, 0, 3, 1, 4}).unbind();
  const torch::Tensor heads = at::scaled_dot_product_attention(
      parts[0], parts[1], parts[2], /*attn_mask=*/{}, is_training() ? attention_dropout_ : 0.0, /*is_causal=*/true);
  return attention_out(heads.transpose(1, 2).flatten(2));
}

HeadImpl::HeadImpl(const GptOptions& options, const torch::Tensor& tied) {
  norm = register_module("norm", make_norm(options.width));
  weight = register_parameter("weight", tied.defined() ? tied : torch::empty({options.vocabulary, options.width}));
  if (!tied.defined()) torch::nn::init::normal_(weight, 0, kInitialStd);
}

torch::Tensor HeadImpl::forward(const torch::Tensor& x) { return torch::linear(norm(x), weight); }

levin::TensorPlan HeadImpl::tensor_plan() const {
  return {{.pattern = "weight", .cut = levin::TensorCut::kVocabulary}};
}

Gpt::Gpt(const Options& options) : options_(options) {
  if (options.width % options.heads != 0)
    throw levin::ConfigError("model.width must be a multiple of model.heads; got " + std::to_string(options.width) +
                             " and " + std::to_string(options.heads));
}

void Gpt::configure_model() {
  if (net_) return;
  levin::Sequential net;
  const Embedding embedding(options_);
  net->push_back(embedding);
  for (int64_t i = 0; i < options_.layers; ++i) net->push_back(Block(options_));
  net->push_back(Head(options_, options_.tie_weights ? embedding->tokens->weight : torch::Tensor()));
  net_ = register_module("net", net);
}

levin::StepOutput Gpt::training_step(const levin::Batch& batch, int64_t /*batch_idx*/) {
  const torch::Tensor loss = loss_of(net_(batch["input"]), batch["target"]);
  log("train_loss", loss, {.prog_bar = true, .sync_dist = true});
  return loss;
}

levin::StepOutput Gpt::validation_step(const levin::Batch& batch, int64_t /*batch_idx*/) {
  const torch::Tensor logits = net_(batch["input"]);
  log("val_loss", loss_of(logits, batch["target"]));
  log("val_perplexity", perplexity_.update(levin::full_logits(logits), batch["target"]), {.prog_bar = true});
  return {};
}

levin::Batch Gpt::predict_step(const levin::Batch& batch, int64_t /*batch_idx*/) {
  torch::Tensor text = levin::full_sequence(batch["input"]);
  for (int64_t i = 0; i < options_.sample_length; ++i) text = torch::cat({text, next_token(text)}, 1);
  return {{"text", text}};
}

torch::Tensor Gpt::next_token(const torch::Tensor& text) {
  const int64_t begin = std::max<int64_t>(text.size(1) - options_.context, 0);
  const torch::Tensor logits = levin::full_logits(net_(text.slice(1, begin)).select(1, -1));
  if (options_.temperature == 0) return logits.argmax(1, /*keepdim=*/true);
  return torch::multinomial(torch::softmax(logits / options_.temperature, 1, torch::kFloat), 1);
}

levin::OptimizerConfigs Gpt::configure_optimizers() {
  const levin::optim::AdamWOptions base{.lr = options_.lr, .betas = {0.9, 0.95}, .weight_decay = options_.weight_decay};
  auto adamw = std::make_shared<levin::optim::AdamW>(levin::optim::parameter_groups(
      *this, base, {{"*.bias", {.weight_decay = 0}}, {"*norm.weight", {.weight_decay = 0}}}));

  auto warmup = std::make_shared<levin::optim::LinearWarmupScheduler>(levin::optim::LinearWarmupOptions{
      .start_factor = 1.0 / static_cast<double>(options_.warmup_steps), .total_iters = options_.warmup_steps});
  auto cosine = std::make_shared<levin::optim::CosineScheduler>(levin::optim::CosineOptions{});
  auto both = std::make_shared<levin::optim::SequentialScheduler>(
      std::vector<std::shared_ptr<levin::optim::Scheduler>>{warmup, cosine},
      std::vector<int64_t>{options_.warmup_steps});
  return levin::OptimizerConfig{.optimizer = adamw,
                                .scheduler = {.interval = levin::Interval::kStep, .scheduler = both}};
}

}  // namespace example
