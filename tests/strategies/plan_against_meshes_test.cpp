// Predicted memory of meshes beside what thread ranks allocate, for several models.

#include "tests/support/counting_backend.h"
#include "tests/support/tiny.h"

#include <levin/core/devices/accounting_allocator.h>
#include <levin/core/interfaces/rank_mesh.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/nn/tensor_plan.h>
#include <levin/core/nn/transformer/language_model.h>
#include <levin/core/planning/memory_check.h>
#include <levin/core/planning/memory_planner.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>
#include <torch/nn/functional/activation.h>

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace levin::testing {
namespace {

namespace F = torch::nn::functional;

/// Within which a plan has to be.
constexpr double kTolerance = 0.05;

constexpr int64_t kMeshWidth = 96;
constexpr int64_t kMeshBatch = 64;

struct MeshBlockImpl : torch::nn::Module, HasTensorPlan {
  MeshBlockImpl() {
    up = register_module("up", torch::nn::Linear(kMeshWidth, 4 * kMeshWidth));
    down = register_module("down", torch::nn::Linear(4 * kMeshWidth, kMeshWidth));
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(F::gelu(up(x))); }
  TensorPlan tensor_plan() const override {
    return {{.pattern = "up", .cut = TensorCut::kColumn}, {.pattern = "down", .cut = TensorCut::kRow}};
  }
  torch::nn::Linear up{nullptr};
  torch::nn::Linear down{nullptr};
};
LEVIN_UNIT(MeshBlock);

/// Blocks without anything around them.
class Perceptron : public Module {
 public:
  Perceptron() {
    levin::Sequential net;
    for (int64_t i = 0; i < 8; ++i) net->push_back(MeshBlock());
    net_ = register_module("net", net);
  }
  StepOutput training_step(const Batch& batch, int64_t) override { return F::mse_loss(net_(batch["x"]), batch["y"]); }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 1e-4})};
  }

 private:
  levin::Sequential net_{nullptr};
};

constexpr int64_t kVocabulary = 512;
constexpr int64_t kTokens = 16;

nn::LanguageModelOptions decoder_options(bool tied) {
  nn::LanguageModelOptions options;
  options.vocabulary = kVocabulary;
  options.layers = 4;
  options.block.attention = {.width = kMeshWidth, .heads = 4, .causal = true};
  options.block.mlp.hidden = 4 * kMeshWidth;
  options.rotary = nn::RotaryOptions{.dim = kMeshWidth / 4};
  options.tie_embeddings = tied;
  return options;
}

/// A decoder of Levin's, whose embedding and head differ from its layers.
class Decoder : public Module {
 public:
  explicit Decoder(bool tied = false)
      : model_(register_module("model", nn::CausalLanguageModel(decoder_options(tied)))) {}
  StepOutput training_step(const Batch& batch, int64_t) override {
    return model_->loss(batch["tokens"], batch["targets"]);
  }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 1e-4})};
  }

 private:
  nn::CausalLanguageModel model_;
};

class TiedDecoder : public Decoder {
 public:
  TiedDecoder() : Decoder(/*tied=*/true) {}
};

DataLoader numbers_loader(int64_t batch_size) {
  const auto x = at::arange(8 * kMeshBatch * kMeshWidth, at::kFloat).sin().reshape({8 * kMeshBatch, kMeshWidth});
  return DataLoader(std::make_shared<data::TensorDataset>(Batch{{"x", x}, {"y", x.cos()}}), {.batch_size = batch_size});
}

DataLoader tokens_loader(int64_t batch_size) {
  const auto tokens = at::arange(8 * kMeshBatch * kTokens, at::kLong).mul(7).remainder(kVocabulary).view({-1, kTokens});
  return DataLoader(std::make_shared<data::TensorDataset>(Batch{{"tokens", tokens}, {"targets", tokens.roll(-1, 1)}}),
                    {.batch_size = batch_size});
}

/// A model with its data.
struct PlannedModel {
  std::string name;
  std::function<std::shared_ptr<Module>()> make;
  std::function<DataLoader(int64_t)> loader;
};

std::vector<PlannedModel> planned_models() {
  return {{"Perceptron", [] { return make<Perceptron>(); }, numbers_loader},
          {"Decoder", [] { return make<Decoder>(); }, tokens_loader},
          {"TiedDecoder", [] { return make<TiedDecoder>(); }, tokens_loader}};
}

/// Measured with half of the batch.
TrainingNeeds needs_for(const PlannedModel& model) {
  const TrainerOptions options = quiet(1);
  const auto planner = std::make_shared<MemoryPlanner>(PlanOptions{}, options);
  Trainer trainer(planning_options(options, planner));
  trainer.tune(model.make(), model.loader(kMeshBatch / 2));
  TrainingNeeds needs = planner->needs();
  needs.batch_size = kMeshBatch;
  return needs;
}

/// Thread ranks that divide so.
TrainerOptions ranks_for(const PlanRow& way) {
  TrainerOptions options = quiet(1);
  options.devices = static_cast<int>(way.devices());
  Config strategy = Config::parse("{start_method: thread}", {});
  const Config planned = strategy_config(way);
  planned.is_scalar() ? strategy.set("name", planned) : strategy.merge(planned);
  options.strategy = Spec<Strategy>(strategy);
  return options;
}

/// Bytes of the rank that needs most.
int64_t measured_on(const PlannedModel& model, const PlanRow& way) {
  const auto check = make<MemoryCheck>();
  Trainer trainer(checking_options(ranks_for(way), /*steps=*/4, check));
  trainer.fit(model.make(), model.loader(kMeshBatch));
  return check->measured().value().bytes;
}

struct MeshCase {
  const char* name;
  PlanRow way;
  /// Not where weights are nearly all: a plan leaves out some of what is whole while checkpoints are repeated.
  bool only_decoders = false;
};

class PlanAgainstMeshes : public ::testing::TestWithParam<MeshCase> {};

TEST_P(PlanAgainstMeshes, PredictsTheRankThatNeedsMost) {
  AccountingAllocator::install();
  const auto& [name, way, only_decoders] = GetParam();
  for (const PlannedModel& model : planned_models()) {
    if (only_decoders && model.name == "Perceptron") continue;
    const PlanRow row = plan_row(needs_for(model), std::numeric_limits<int64_t>::max() / 2, way);
    const auto measured = static_cast<double>(measured_on(model, way));
    const auto planned = static_cast<double>(row.total());
    const std::string text = fmt::format(
        "{} {}: {:.0f} KiB measured, {:.0f} planned ({:+.1f} %): parameters {}, gradients {}, optimizer {}, "
        "activations {}, backward {}, "
        "gathered {}, widened {}",
        model.name, name, measured / 1024, planned / 1024, 100 * (planned / measured - 1), row.parameters / 1024,
        row.gradients / 1024, row.optimizer / 1024, row.activations / 1024, row.backward / 1024, row.gathered / 1024,
        row.widened / 1024);
    RecordProperty(model.name, text);
    EXPECT_NEAR(planned, measured, kTolerance * measured) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PlanAgainstMeshes,
    ::testing::Values(
        MeshCase{"Shards3", {.shard = 2, .stage = 3}},
        MeshCase{"PipelineShards1", {.pipeline = 2, .shard = 2, .stage = 1}},
        MeshCase{"PipelineShards2", {.pipeline = 2, .shard = 2, .stage = 2}},
        MeshCase{"PipelineShards3", {.pipeline = 2, .shard = 2, .stage = 3}},
        MeshCase{"PipelineReplicasShards3", {.pipeline = 2, .replicate = 2, .shard = 2, .stage = 3}},
        MeshCase{"InterleavedShards2", {.pipeline = 2, .shard = 2, .stage = 2, .schedule = "interleaved", .chunks = 2}},
        MeshCase{"InterleavedShards3", {.pipeline = 2, .shard = 2, .stage = 3, .schedule = "interleaved", .chunks = 2}},
        MeshCase{"Tensor2", {.tensor = 2}}, MeshCase{"Tensor4", {.tensor = 4}},
        MeshCase{"ReplicasTensor2", {.replicate = 2, .tensor = 2}},
        MeshCase{"Shards3Tensor2", {.shard = 2, .tensor = 2, .stage = 3}},
        MeshCase{"PipelineTensor2", {.pipeline = 2, .tensor = 2}},
        MeshCase{"PipelineShards3Tensor2", {.pipeline = 2, .shard = 2, .tensor = 2, .stage = 3}},
        MeshCase{"CheckpointedShards3", {.pipeline = 2, .shard = 2, .stage = 3, .checkpoints = true}, true}),
    [](const auto& tested) { return tested.param.name; });

// ---- What ranks send

/// Of the rank that sends most along each dimension, in a later step.
class SentBytes final : public Callback {
 public:
  void on_train_start(Trainer& trainer, Module&) override {
    for (const char* dimension : {"replicate", "shard", "tensor"})
      groups_.emplace_back(dimension, CountingBackend::put_before(trainer.mesh().group(dimension)));
  }
  void on_train_batch_start(Trainer& trainer, Module&, const Batch&, int64_t) override {
    if (trainer.global_step() == 2) before_ = now();
  }
  void on_train_batch_end(Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) override {
    if (trainer.global_step() != 3) return;
    for (const auto& [dimension, bytes] : now()) {
      const at::Tensor most = at::full({}, bytes - before_[dimension], at::kDouble);
      trainer.strategy().collective().all_reduce(most, ReduceOp::kMax)->wait();
      sent_[dimension] = most.item<double>();
    }
  }
  double sent_along(const std::string& dimension) const { return sent_.at(dimension); }

 private:
  std::map<std::string, double> now() const {
    std::map<std::string, double> bytes;
    for (const auto& [dimension, group] : groups_) bytes[dimension] = group == nullptr ? 0 : group->sent();
    return bytes;
  }

  std::vector<std::pair<std::string, c10::intrusive_ptr<CountingBackend>>> groups_;
  std::map<std::string, double> before_;
  std::map<std::string, double> sent_;
};

class PlanAgainstSentBytes : public ::testing::TestWithParam<MeshCase> {};

TEST_P(PlanAgainstSentBytes, CountsWhatRanksSend) {
  const PlanRow& way = GetParam().way;
  const PlannedModel model = planned_models().front();  // whose stages are the same
  TrainerOptions options = ranks_for(way);
  options.max_steps = 4;
  const auto sent = make<SentBytes>();
  options.callbacks = {Spec<Callback>(std::shared_ptr<Callback>(sent))};
  Trainer trainer(options);
  trainer.fit(model.make(), model.loader(kMeshBatch));
  const PlanRow row = plan_row(needs_for(model), std::numeric_limits<int64_t>::max() / 2, way);
  // Numbers of examples, losses and flags are a few bytes more.
  constexpr double kFewBytes = 512;
  const auto expect = [&](const char* dimension, int64_t planned) {
    EXPECT_NEAR(static_cast<double>(planned), sent->sent_along(dimension),
                kFewBytes + 0.001 * static_cast<double>(planned))
        << dimension;
  };
  expect("replicate", row.sent_replicate);
  expect("shard", row.sent_shard);
  expect("tensor", row.sent_tensor);
}

INSTANTIATE_TEST_SUITE_P(All, PlanAgainstSentBytes,
                         ::testing::Values(MeshCase{"ReplicasTensor2", {.replicate = 2, .tensor = 2}},
                                           MeshCase{"PipelineTensor2", {.pipeline = 2, .tensor = 2}},
                                           MeshCase{"PipelineShards1", {.pipeline = 2, .shard = 2, .stage = 1}},
                                           MeshCase{"PipelineShards2", {.pipeline = 2, .shard = 2, .stage = 2}},
                                           MeshCase{"PipelineShards3", {.pipeline = 2, .shard = 2, .stage = 3}}),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace levin::testing
