#include "tests/conformance/text_model.h"
#include "tests/support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/weight_averaging.h>
#include <levin/core/base/error.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/optim/named_optimizer.h>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

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
    expect_same(fit_text(kTensorMeshes[i].strategy, kTensorMeshes[i].ranks, {}, options),
                fit_text("single_device", 1, {}, options), 1e-12);
  }
}

TEST(TensorParallel, TrainsInStagesOfEveryScheduleAsOneDevice) {
  const TextOptions options{.dropout = 0, .tied = true};
  const auto configure = [](TrainerOptions& trainer) { trainer.accumulate_grad_batches = 2; };
  const Trained expected = fit_text("single_device", 1, configure, options);
  for (const char* schedule : {"[2, 2], schedule: gpipe", "[2, 2], schedule: 1f1b, checkpoint: always",
                               "[1, 1, 1, 1], schedule: interleaved", "[2, 2], schedule: zero_bubble"}) {
    SCOPED_TRACE(schedule);
    expect_same(fit_text(fmt::format("{{pipeline: {{size: 2, micro_batches: 2, balance: {}}}, tensor: 2, start_method: "
                                     "thread}}",
                                     schedule),
                         4, configure, options),
                expected, 1e-12);
  }
  const char* const replicas =
      "{pipeline: {size: 2, balance: [2, 2], micro_batches: 2}, replicate: 2, tensor: 2, start_method: thread}";
  expect_same(fit_text(replicas, 8, configure, options), expected, 1e-12);
  const char* const shards =
      "{pipeline: {size: 2, balance: [2, 2], micro_batches: 2}, shard: {size: 2, stage: 1}, tensor: 2, start_method: "
      "thread}";
  expect_same(fit_text(shards, 8, configure, options), expected, 1e-12);
}

TEST(TensorParallel, DrawsTheMasksOfAPipeline) {
  const Trained expected =
      fit_text("{pipeline: {size: 2, balance: [2, 2], micro_batches: 2}, start_method: thread}", 2);
  const TensorMesh& mesh = kTensorMeshes[kPipelineMesh];
  expect_same(fit_text(mesh.strategy, mesh.ranks), expected, 1e-12);
  // And so does one device, with the streams that a pipeline's members have.
  Trained one_device = fit_text("single_device", 1, {}, {.dropout = 0.2, .micro_batches = 2});
  one_device.metrics.clear();  // of which those of training are averaged otherwise
  expect_same(fit_text(mesh.strategy, mesh.ranks, {}, {.dropout = 0.2}), one_device, 1e-12);
}

TEST(TensorParallel, TrainsIn32BitAsOneDevice) {
  const auto configure = [](TrainerOptions& options) { options.precision = Spec<Precision>(Config::parse("32", {})); };
  const TextOptions options{.dropout = 0};
  const Trained expected = fit_text("single_device", 1, configure, options);
  for (const TensorMesh& mesh : kTensorMeshes) {
    SCOPED_TRACE(mesh.strategy);
    expect_same(fit_text(mesh.strategy, mesh.ranks, configure, options), expected, 1e-5);
  }
}

TEST(TensorParallel, ClipsEachWholeRowAsOneDevice) {
  const auto configure = [](TrainerOptions& options) {
    options.gradient_clip_algorithm = "adaptive";
    options.gradient_clip_val = 0.01;
  };
  const TextOptions options{.dropout = 0};
  const Trained expected = fit_text("single_device", 1, configure, options);
  for (const TensorMesh& mesh : kTensorMeshes) {
    SCOPED_TRACE(mesh.strategy);
    expect_same(fit_text(mesh.strategy, mesh.ranks, configure, options), expected, 1e-12);
  }
}

TEST(TensorParallel, WorksWithCheckpointedActivationsAndAveragedWeights) {
  const auto configure = [](TrainerOptions& options) {
    options.activation_checkpointing.units = {"FusedBlock", "TransformerBlock"};
    options.callbacks = {make<WeightAveraging>({})};
    options.accumulate_grad_batches = 2;
  };
  const Trained expected = fit_text("single_device", 1, configure);
  expect_same(fit_text(kTensorMeshes[0].strategy, kTensorMeshes[0].ranks, configure), expected, 1e-12);
  // Replicas draw other masks.
  const TextOptions options{.dropout = 0};
  const Trained without_masks = fit_text("single_device", 1, configure, options);
  for (const size_t i : {size_t{4}, kPipelineMesh, kShardedPipelineMesh}) {
    SCOPED_TRACE(kTensorMeshes[i].strategy);
    expect_same(fit_text(kTensorMeshes[i].strategy, kTensorMeshes[i].ranks, configure, options), without_masks, 1e-12);
  }
}

std::string failure(const TensorMesh& mesh, const TextOptions& options,
                    const std::function<void(TrainerOptions&)>& configure = {}) {
  try {
    fit_text(mesh.strategy, mesh.ranks, configure, options);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(TensorParallel, SaysWhatItCannotDo) {
  EXPECT_THAT(failure({"{tensor: 3, start_method: thread}", 3}, {}),
              HasSubstr("tensor_plan of FusedBlock 'net.1': the weight 'qkv.weight' cannot be cut by column over 3 "
                        "ranks: it has 4 heads; valid: a multiple of 3 (the next is 6), or over 2 ranks"));
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
