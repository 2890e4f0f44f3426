#include "tests/support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/weight_averaging.h>
#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/data/tensor_dataset.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/nn/tensor_plan.h>
#include <levin/core/nn/transformer/transformer_block.h>
#include <levin/core/nn/unit.h>
#include <levin/core/optim/adam.h>
#include <levin/core/optim/named_optimizer.h>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kVocabulary = 24;
constexpr int64_t kTokens = 8;
constexpr int64_t kWidth = 16;
constexpr int64_t kTextRows = 80;
constexpr int64_t kTextEpochs = 5;  // 50 steps

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
  explicit TextHeadImpl(const at::Tensor& tied) {
    const torch::nn::Linear own(kWidth, kVocabulary);
    weight = register_parameter("weight", tied.defined() ? tied : own->weight);
    bias = register_parameter("bias", own->bias);
  }
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }
  TensorPlan tensor_plan() const override { return {{.pattern = "weight", .cut = TensorCut::kVocabulary}}; }
  at::Tensor weight, bias;
};
TORCH_MODULE(TextHead);

struct TextOptions {
  int64_t heads = 4;
  double dropout = 0.1;
  bool tied = false;
  std::string mistake;
  static void describe(Schema<TextOptions>& schema) {
    schema.field("heads", &TextOptions::heads, "of attention");
    schema.field("dropout", &TextOptions::dropout, "of what blocks add");
    schema.field("tied", &TextOptions::tied, "the head has the embedding's weight");
    schema.field("mistake", &TextOptions::mistake, "what the step does wrong");
  }
};

/// A language model of a block of the user's and one of Levin's, which a pipeline may cut.
class Text : public Module, public HasTensorPlan {
 public:
  using Options = TextOptions;
  explicit Text(const Options& options) : options_(options) {
    fused_ = FusedBlock(options.heads);
    nn::TransformerBlockOptions block;
    block.attention = {.width = kWidth, .heads = options.heads, .key_value_heads = 2, .causal = true, .bias = true};
    block.mlp = {.hidden = 24};
    block.dropout = options.dropout;  // of whole activations, between layers that are cut
    const torch::nn::Embedding embed(kVocabulary, kWidth);
    Sequential net(embed, fused_, nn::TransformerBlock(block).ptr(),
                   TextHead(options.tied ? embed->weight : at::Tensor()));
    if (options.mistake == "late") net->push_back([](const at::Tensor& x) { return 2 * x; });
    net_ = register_module("net", net);
  }

  TensorPlan tensor_plan() const override { return {{.pattern = "net.0", .cut = TensorCut::kVocabulary}}; }
  at::Tensor logits(const at::Tensor& tokens) { return net_(tokens).slice(1, 0, -1); }
  static at::Tensor loss(const at::Tensor& logits, const at::Tensor& tokens) {
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), tokens.slice(1, 1).flatten());
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    at::Tensor result = loss(logits(batch["tokens"]), batch["tokens"]);
    if (options_.mistake == "einsum") result = result + at::einsum("oi,oi->", {fused_->up->weight, fused_->up->weight});
    log("train_loss", result);
    return result;
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    const at::Tensor tokens = batch["tokens"];
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

DataLoader texts() {
  const at::Tensor tokens = at::arange(kTextRows * kTokens, at::kLong).square().add(3).remainder(kVocabulary);
  return DataLoader(std::make_shared<data::TensorDataset>(Batch{{"tokens", tokens.view({kTextRows, kTokens})}}),
                    {.shuffle = true, .global_batch_size = 8});
}

struct Trained {
  std::vector<std::pair<std::string, at::Tensor>> weights;
  MetricMap metrics;
};

Trained fit(const std::string& strategy, int64_t ranks, const std::function<void(TrainerOptions&)>& configure = {},
            const TextOptions& options = {}) {
  seed_everything(7);
  const auto module = make<Text>(options);
  TrainerOptions trainer_options = quiet(kTextEpochs);
  trainer_options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  trainer_options.devices = ranks;
  trainer_options.precision = Spec<Precision>(Config::parse("64-true", {}));
  trainer_options.gradient_clip_val = 0.5;
  if (configure) configure(trainer_options);
  Trainer trainer(trainer_options);
  trainer.fit(module, texts(), texts());
  Trained trained{.weights = {}, .metrics = trainer.callback_metrics()};
  for (const auto& item : module->named_parameters()) trained.weights.emplace_back(item.key(), item.value().detach());
  return trained;
}

/// Without biases of keys, whose gradient is rounding alone, of which AdamW makes whole steps.
void expect_same(const Trained& got, const Trained& expected, double bound) {
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

struct TensorMesh {
  const char* strategy;
  int64_t ranks;
};
const std::vector<TensorMesh> kTensorMeshes{
    {"{tensor: 2, start_method: thread}", 2},
    {"{replicate: 2, tensor: 2, start_method: thread}", 4},
    {"{shard: {size: 2, stage: 1}, tensor: 2, start_method: thread}", 4},
    {"{shard: {size: 2, stage: 2}, tensor: 2, start_method: thread}", 4},
    {"{shard: {size: 2, stage: 3}, tensor: 2, start_method: thread}", 4},
    {"{replicate: 2, shard: 2, tensor: 2, start_method: thread}", 8},
    {"{pipeline: {size: 2, balance: [2, 2], micro_batches: 2}, tensor: 2, start_method: thread}", 4},
    {"{pipeline: {size: 2, balance: [2, 2], micro_batches: 2}, shard: {size: 2, stage: 3}, "
     "tensor: 2, start_method: thread}",
     8}};
constexpr size_t kPipelineMesh = 6;
constexpr size_t kShardedPipelineMesh = 7;

TEST(TensorParallel, TrainsTransformersAsOneDevice) {
  // Replicas draw other masks.
  for (size_t i = 0; i < kTensorMeshes.size(); ++i) {
    const TextOptions options{.dropout = i == 0 ? 0.1 : 0, .tied = i >= kPipelineMesh};
    SCOPED_TRACE(kTensorMeshes[i].strategy);
    expect_same(fit(kTensorMeshes[i].strategy, kTensorMeshes[i].ranks, {}, options),
                fit("single_device", 1, {}, options), 1e-12);
  }
}

TEST(TensorParallel, TrainsInStagesOfEveryScheduleAsOneDevice) {
  const TextOptions options{.dropout = 0, .tied = true};
  const auto configure = [](TrainerOptions& trainer) { trainer.accumulate_grad_batches = 2; };
  const Trained expected = fit("single_device", 1, configure, options);
  for (const char* schedule : {"[2, 2], schedule: gpipe", "[2, 2], schedule: 1f1b, checkpoint: always",
                               "[1, 1, 1, 1], schedule: interleaved", "[2, 2], schedule: zero_bubble"}) {
    SCOPED_TRACE(schedule);
    expect_same(fit(fmt::format("{{pipeline: {{size: 2, micro_batches: 2, balance: {}}}, tensor: 2, start_method: "
                                "thread}}",
                                schedule),
                    4, configure, options),
                expected, 1e-12);
  }
  const char* const replicas =
      "{pipeline: {size: 2, balance: [2, 2], micro_batches: 2}, replicate: 2, tensor: 2, start_method: thread}";
  expect_same(fit(replicas, 8, configure, options), expected, 1e-12);
  const char* const shards =
      "{pipeline: {size: 2, balance: [2, 2], micro_batches: 2}, shard: {size: 2, stage: 1}, tensor: 2, start_method: "
      "thread}";
  expect_same(fit(shards, 8, configure, options), expected, 1e-12);
}

TEST(TensorParallel, DrawsTheMasksOfAPipeline) {
  const Trained expected = fit("{pipeline: {size: 2, balance: [2, 2], micro_batches: 2}, start_method: thread}", 2);
  expect_same(fit(kTensorMeshes[kPipelineMesh].strategy, kTensorMeshes[kPipelineMesh].ranks), expected, 1e-12);
}

TEST(TensorParallel, TrainsIn32BitAsOneDevice) {
  const auto configure = [](TrainerOptions& options) { options.precision = Spec<Precision>(Config::parse("32", {})); };
  const TextOptions options{.dropout = 0};
  const Trained expected = fit("single_device", 1, configure, options);
  for (const TensorMesh& mesh : kTensorMeshes) {
    SCOPED_TRACE(mesh.strategy);
    expect_same(fit(mesh.strategy, mesh.ranks, configure, options), expected, 1e-5);
  }
}

TEST(TensorParallel, ClipsEachWholeRowAsOneDevice) {
  const auto configure = [](TrainerOptions& options) {
    options.gradient_clip_algorithm = "adaptive";
    options.gradient_clip_val = 0.01;
  };
  const TextOptions options{.dropout = 0};
  const Trained expected = fit("single_device", 1, configure, options);
  for (const TensorMesh& mesh : kTensorMeshes) {
    SCOPED_TRACE(mesh.strategy);
    expect_same(fit(mesh.strategy, mesh.ranks, configure, options), expected, 1e-12);
  }
}

TEST(TensorParallel, WorksWithCheckpointedActivationsAndAveragedWeights) {
  const auto configure = [](TrainerOptions& options) {
    options.activation_checkpointing.units = {"FusedBlock", "TransformerBlock"};
    options.callbacks = {make<WeightAveraging>({})};
    options.accumulate_grad_batches = 2;
  };
  const Trained expected = fit("single_device", 1, configure);
  expect_same(fit(kTensorMeshes[0].strategy, kTensorMeshes[0].ranks, configure), expected, 1e-12);
  // Replicas draw other masks.
  const TextOptions options{.dropout = 0};
  const Trained without_masks = fit("single_device", 1, configure, options);
  for (const size_t i : {size_t{4}, kPipelineMesh, kShardedPipelineMesh}) {
    SCOPED_TRACE(kTensorMeshes[i].strategy);
    expect_same(fit(kTensorMeshes[i].strategy, kTensorMeshes[i].ranks, configure, options), without_masks, 1e-12);
  }
}

std::string failure(const TensorMesh& mesh, const TextOptions& options,
                    const std::function<void(TrainerOptions&)>& configure = {}) {
  try {
    fit(mesh.strategy, mesh.ranks, configure, options);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(TensorParallel, SaysWhatItCannotDo) {
  EXPECT_THAT(failure({"{tensor: 3, start_method: thread}", 3}, {}),
              HasSubstr("tensor_plan of FusedBlock 'net.1': the weight 'qkv.weight' cannot be cut by column over 3 "
                        "ranks: it has 4 heads; valid: a multiple of 3"));
  EXPECT_THAT(
      failure({"{tensor: {size: 2, plan: {net.3.weight: column, net.3.weights: row}}, start_method: thread}", 2}, {}),
      HasSubstr("strategy.tensor.plan: the pattern 'net.3.weights' matches no weight"));
  EXPECT_THAT(failure({"{tensor: {size: 2, plan: {net.3: rows}}, start_method: thread}", 2}, {}),
              HasSubstr("'net.3' is cut by 'rows'; valid: column, row, vocabulary, whole"));
  EXPECT_THAT(failure({"{shard: {size: 2, offload: true}, tensor: 2, start_method: thread}", 4}, {}),
              HasSubstr("sharded.tensor_group is 2, and the parts are to be in the host's memory (offload); valid: "
                        "offload: false"));
  EXPECT_THAT(failure({"{name: sharded_threads, tensor_group: 3}", 4}, {}),
              HasSubstr("sharded.tensor_group is 3: 4 ranks cannot be divided into groups of 3; valid: a divisor"));
  EXPECT_THAT(failure({"{name: sharded_threads, tensor_group: 2}", 2}, {}),
              HasSubstr("no ranks are left to divide what each of them holds; valid: strategy: {tensor: N}"));
  EXPECT_THAT(failure({"{name: pipeline_threads, tensor_group: 3}", 4}, {}),
              HasSubstr("pipeline.tensor_group is 3: 4 ranks cannot be divided into groups of 3; valid: a divisor"));
  EXPECT_THAT(failure({"{name: pipeline_threads, tensor_group: 2}", 2}, {}),
              HasSubstr("no ranks are left for a second stage; valid: strategy: {tensor: N}"));
  EXPECT_THAT(
      failure({"{pipeline: {size: 2, balance: [4, 1], micro_batches: 2}, tensor: 2, start_method: thread}", 4},
              {.mistake = "late"}),
      HasSubstr("logits that are cut over ranks do not pass from stage to stage; got them from the elements 0 to "
                "3 of the sequential 'net'"));
  for (const size_t mesh : {0, 4})
    EXPECT_THAT(failure(kTensorMeshes[mesh], {.mistake = "einsum"}),
                HasSubstr("the weight 'net.1.up.weight' is cut by column over 2 ranks, and aten::einsum"));
}

class TensorMeshes : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Meshes, TensorMeshes, ::testing::Values(1, 2, 3, 4, kPipelineMesh, kShardedPipelineMesh));

TEST_P(TensorMeshes, TheModuleHasAllItsWeightsAfterACall) {
  const auto module = make<Text>();
  TrainerOptions options = quiet(1);
  options.strategy = Spec<Strategy>(Config::parse(kTensorMeshes[GetParam()].strategy, {}));
  options.devices = kTensorMeshes[GetParam()].ranks;
  std::atomic<int> looks = 0;
  options.callbacks = {make<LambdaCallback>(
      {.on_train_batch_end = [&](Trainer& trainer, Module& own, const StepOutput&, const Batch&, int64_t) {
        const at::NoGradGuard no_gradients;
        const auto weight = [&] { return own.named_parameters()["net.1.qkv.weight"].detach(); };
        const bool is_here = trainer.mesh().coordinate("pipeline") == 0;  // else it is on the first stage
        at::Tensor before;
        for (const double factor : {2.0, 0.5, 1.0}) {
          const auto all = trainer.full_parameters(own);
          if (!is_here) continue;
          EXPECT_EQ(weight().sizes().vec(), (std::vector<int64_t>{3 * kWidth, kWidth}));
          if (!before.defined()) before = weight().clone();
          EXPECT_TRUE(at::equal(weight(), factor == 0.5 ? 2 * before : before));  // with what was written
          weight().mul_(factor);
        }
        ++looks;
      }})};
  Trainer trainer(options);
  trainer.fit(module, texts());
  EXPECT_EQ(looks, kTensorMeshes[GetParam()].ranks * kTextRows / 8);
  for (const auto& parameter : module->parameters())
    EXPECT_FALSE(parameter.key_set().has(c10::DispatchKey::DeferredInit));
  const double loss = trainer.validate(module, texts()).at(0).at("val_loss");
  Trainer alone(quiet(1));
  EXPECT_NEAR(alone.validate(module, texts()).at(0).at("val_loss"), loss, 1e-5);
}

}  // namespace
}  // namespace levin::testing
