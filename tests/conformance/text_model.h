#pragma once

#include "tests/support/tiny.h"

#include <levin/core/base/seed.h>
#include <levin/core/base/thread_generator.h>
#include <levin/core/data/tensor_dataset.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/nn/tensor_plan.h>
#include <levin/core/nn/transformer/transformer_block.h>
#include <levin/core/nn/unit.h>
#include <levin/core/optim/adam.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin::testing {

inline constexpr int64_t kVocabulary = 24;
inline constexpr int64_t kTokens = 8;
inline constexpr int64_t kWidth = 16;
inline constexpr int64_t kTextRows = 80;
inline constexpr int64_t kTextEpochs = 5;  // 50 steps

/// Users' code, which knows nothing of ranks but its plan: queries, keys and values in one projection.
struct FusedBlockImpl : torch::nn::Module, HasTensorPlan {
  explicit FusedBlockImpl(int64_t heads) : head(kWidth / heads) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, kWidth));
    up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = qkv(norm(x)).unflatten(2, {3, -1, head}).permute({2, 0, 3, 1, 4}).unbind();
    const at::Tensor a = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, /*is_causal=*/true);
    const at::Tensor y = x + out(a.transpose(1, 2).flatten(2));
    return y + down(at::gelu(up(y), "tanh"));
  }
  TensorPlan tensor_plan() const override {
    return {{.pattern = "qkv", .cut = TensorCut::kColumn, .parts = 3, .heads = kWidth / head},
            {.pattern = "out", .cut = TensorCut::kRow},
            {.pattern = "up", .cut = TensorCut::kColumn},
            {.pattern = "down", .cut = TensorCut::kRow}};
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
  int64_t head;
};
LEVIN_UNIT(FusedBlock);

/// Logits by a weight that may be that of the embedding.
struct TextHeadImpl : torch::nn::Module, HasTensorPlan {
  explicit TextHeadImpl(const at::Tensor& tied, bool has_bias = true) {
    const torch::nn::Linear own(kWidth, kVocabulary);
    weight = register_parameter("weight", tied.defined() ? tied : own->weight);
    if (has_bias) bias = register_parameter("bias", own->bias);
  }
  at::Tensor forward(const at::Tensor& x) {
    return at::linear(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
  }
  TensorPlan tensor_plan() const override { return {{.pattern = "weight", .cut = TensorCut::kVocabulary}}; }
  at::Tensor weight, bias;
};
TORCH_MODULE(TextHead);

struct TextOptions {
  int64_t heads = 4;
  double dropout = 0.1;
  int64_t key_value_heads = 2;
  bool tied = false;
  bool head_bias = true;
  std::string mistake;
  int64_t micro_batches = 0;
  static void describe(Schema<TextOptions>& schema) {
    schema.field("heads", &TextOptions::heads, "of attention");
    schema.field("key_value_heads", &TextOptions::key_value_heads, "of the second block");
    schema.field("dropout", &TextOptions::dropout, "of what blocks add");
    schema.field("tied", &TextOptions::tied, "the head has the embedding's weight");
    schema.field("head_bias", &TextOptions::head_bias, "the head has a bias");
    schema.field("mistake", &TextOptions::mistake, "what the step does wrong");
    schema.field("micro_batches", &TextOptions::micro_batches,
                 "of a pipeline whose masks one device draws; 0: its own");
  }
};

/// A language model of a block of the user's and one of Levin's, which a pipeline may cut.
class Text : public Module, public HasTensorPlan {
 public:
  using Options = TextOptions;
  explicit Text(const Options& options) : options_(options) {
    fused_ = FusedBlock(options.heads);
    nn::TransformerBlockOptions block;
    block.attention = {.width = kWidth,
                       .heads = options.heads,
                       .key_value_heads = options.key_value_heads,
                       .causal = true,
                       .bias = true};
    block.mlp = {.hidden = 24};
    block.dropout = options.dropout;  // of whole activations, between layers that are cut
    const torch::nn::Embedding embed(kVocabulary, kWidth);
    Sequential net(embed, fused_, nn::TransformerBlock(block).ptr(),
                   TextHead(options.tied ? embed->weight : at::Tensor(), options.head_bias));
    if (options.mistake == "late") net->push_back([](const at::Tensor& x) { return 2 * x; });
    net_ = register_module("net", net);
  }

  TensorPlan tensor_plan() const override { return {{.pattern = "net.0", .cut = TensorCut::kVocabulary}}; }
  at::Tensor logits(const at::Tensor& tokens) { return net_(tokens).slice(1, 0, -1); }
  at::Tensor tokens_of(const Batch& batch) const {
    return options_.mistake == "odd" ? batch["tokens"].slice(1, 0, kTokens - 1) : batch["tokens"];
  }
  static at::Tensor loss(const at::Tensor& logits, const at::Tensor& tokens) {
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), tokens.slice(1, 1).flatten());
  }
  /// The loss with the masks that a pipeline draws: from a stream for each member and micro-batch (docs/pipeline.md).
  at::Tensor loss_with_streams(const at::Tensor& tokens) {
    const auto seed =
        static_cast<uint64_t>(at::empty({}, at::kLong).random_(std::numeric_limits<int64_t>::max()).item<int64_t>());
    std::vector<at::Tensor> losses;
    for (const at::Tensor& part : tokens.chunk(options_.micro_batches)) {
      std::vector<at::Tensor> passed{part};
      for (size_t member = 0; member < net_->size(); ++member) {
        const ThreadGeneratorScope stream(mix_seed(seed, losses.size(), member));
        passed = net_->forward_range(passed, member, member + 1);
      }
      losses.push_back(loss(passed.front().slice(1, 0, -1), part));
    }
    return at::stack(losses).mean();
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    if (options_.micro_batches > 0) return loss_with_streams(batch["tokens"]);
    at::Tensor result = loss(logits(tokens_of(batch)), tokens_of(batch));
    if (options_.mistake == "einsum") result = result + at::einsum("oi,oi->", {fused_->up->weight, fused_->up->weight});
    log("train_loss", result);
    return result;
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    const at::Tensor tokens = tokens_of(batch);
    const at::Tensor guesses = logits(tokens);
    const at::Tensor result = loss(guesses, tokens);
    log("val_loss", result, {.sync_dist = true});
    log("accuracy", (guesses.argmax(-1) == tokens.slice(1, 1)).to(at::kFloat).mean(), {.sync_dist = true});
    log("examples", static_cast<double>(batch.size()), {.reduce = LogReduce::kSum, .sync_dist = true});
    return result;
  }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::AdamW>(
                               parameters(), optim::AdamWOptions{.lr = 3e-3, .weight_decay = 0.1})};
  }

 private:
  Options options_;
  FusedBlock fused_{nullptr};
  Sequential net_{nullptr};
};

inline DataLoader texts() {
  const at::Tensor tokens = at::arange(kTextRows * kTokens, at::kLong).square().add(3).remainder(kVocabulary);
  return DataLoader(std::make_shared<data::TensorDataset>(Batch{{"tokens", tokens.view({kTextRows, kTokens})}}),
                    {.shuffle = true, .global_batch_size = 8});
}

struct Trained {
  std::vector<std::pair<std::string, at::Tensor>> weights;
  MetricMap metrics;
};

inline Trained fit_text(const std::string& strategy, int64_t ranks,
                        const std::function<void(TrainerOptions&)>& configure = {}, const TextOptions& options = {},
                        const std::string& ckpt = "") {
  seed_everything(7);
  const auto module = make<Text>(options);
  TrainerOptions trainer_options = quiet(kTextEpochs);
  trainer_options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  trainer_options.devices = ranks;
  trainer_options.precision = Spec<Precision>(Config::parse("64-true", {}));
  trainer_options.gradient_clip_val = 0.5;
  if (configure) configure(trainer_options);
  Trainer trainer(trainer_options);
  trainer.fit(module, texts(), texts(), ckpt);
  Trained trained{.weights = {}, .metrics = trainer.callback_metrics()};
  for (const auto& item : module->named_parameters()) trained.weights.emplace_back(item.key(), item.value().detach());
  return trained;
}

/// Without biases of keys, whose gradient is rounding alone, of which AdamW makes whole steps.
inline void expect_same(const Trained& got, const Trained& expected, double bound) {
  ASSERT_EQ(got.weights.size(), expected.weights.size());
  for (size_t i = 0; i < expected.weights.size(); ++i) {
    const auto& [name, weight] = expected.weights[i];
    ASSERT_EQ(got.weights[i].second.sizes(), weight.sizes()) << name;
    at::Tensor off = (got.weights[i].second - weight).abs();
    if (name.ends_with("k_proj.bias")) continue;
    if (name.ends_with("qkv.bias")) off = off.unflatten(0, {3, -1}).index_select(0, at::tensor({0, 2}, at::kLong));
    EXPECT_LT(off.max().item<double>(), bound) << name;
  }
  for (const auto& [name, value] : expected.metrics) EXPECT_NEAR(got.metrics.at(name), value, 1e-6) << name;
}

}  // namespace levin::testing
