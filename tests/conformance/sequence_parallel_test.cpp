#include "tests/conformance/text_model.h"
#include "tests/support/captured_log.h"
#include "tests/support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/weight_averaging.h>
#include <levin/core/base/error.h>
#include <levin/core/nn/activation_meter.h>

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

struct SequenceMesh {
  const char* sizes;
  int64_t ranks;
};

std::string strategy_of(const SequenceMesh& mesh) { return fmt::format("{{{}, start_method: thread}}", mesh.sizes); }

const SequenceMesh kTwo{"tensor: {size: 2, sequence_parallel: true}", 2};
const SequenceMesh kFour{"tensor: {size: 4, sequence_parallel: true}", 4};
const SequenceMesh kReplicas{"replicate: 2, tensor: {size: 2, sequence_parallel: true}", 4};
const SequenceMesh kShards{"shard: {size: 2, stage: 3}, tensor: {size: 2, sequence_parallel: true}", 4};
const SequenceMesh kStages{
    "pipeline: {size: 2, balance: [2, 2], micro_batches: 2}, tensor: {size: 2, sequence_parallel: true}", 4};
const std::vector<SequenceMesh> kSequenceMeshes{
    kTwo,
    kFour,
    kReplicas,
    {"shard: {size: 2, stage: 1}, tensor: {size: 2, sequence_parallel: true}", 4},
    {"shard: {size: 2, stage: 2}, tensor: {size: 2, sequence_parallel: true}", 4},
    kShards,
    {"replicate: 2, shard: 2, tensor: {size: 2, sequence_parallel: true}", 8},
    kStages,
    {"pipeline: {size: 2, balance: [2, 2], micro_batches: 2}, shard: {size: 2, stage: 3}, tensor: {size: 2, "
     "sequence_parallel: true}",
     8}};

TextOptions options_of(const SequenceMesh& mesh, double dropout = 0) {
  return {.dropout = dropout, .key_value_heads = mesh.ranks == kFour.ranks ? 4 : 2};
}

TEST(SequenceParallel, TrainsTransformersAsOneDevice) {
  for (size_t i = 0; i < kSequenceMeshes.size(); ++i) {
    const SequenceMesh& mesh = kSequenceMeshes[i];
    SCOPED_TRACE(mesh.sizes);
    TextOptions options = options_of(mesh);
    options.tied = i % 2 == 1;
    expect_same(fit_text(strategy_of(mesh), mesh.ranks, {}, options), fit_text("single_device", 1, {}, options), 1e-12);
  }
}

TEST(SequenceParallel, DrawsTheMasksOfOneDevice) {
  for (const SequenceMesh& mesh : {kTwo, kFour}) {
    SCOPED_TRACE(mesh.sizes);
    const TextOptions options = options_of(mesh, 0.2);
    expect_same(fit_text(strategy_of(mesh), mesh.ranks, {}, options), fit_text("single_device", 1, {}, options), 1e-12);
  }
  // Each replica, and each element of a pipeline, draws its own.
  for (const SequenceMesh& mesh : {kReplicas, kShards, kStages}) {
    SCOPED_TRACE(mesh.sizes);
    std::string others = mesh.sizes;
    others.replace(others.find("tensor: {"), std::string::npos, "tensor: 2");
    const TextOptions options{.dropout = 0.2};
    expect_same(fit_text(strategy_of(mesh), mesh.ranks, {}, options),
                fit_text(strategy_of({others.c_str(), 0}), mesh.ranks, {}, options), 1e-12);
  }
  // One device, with the streams that a pipeline's members have.
  Trained one_device = fit_text("single_device", 1, {}, {.dropout = 0.2, .micro_batches = 2});
  one_device.metrics.clear();  // of which those of training are averaged otherwise
  expect_same(fit_text(strategy_of(kStages), kStages.ranks, {}, {.dropout = 0.2}), one_device, 1e-12);
}

TEST(SequenceParallel, TrainsIn32BitAsOneDevice) {
  const auto configure = [](TrainerOptions& options) { options.precision = Spec<Precision>(Config::parse("32", {})); };
  for (const SequenceMesh& mesh : kSequenceMeshes) {
    SCOPED_TRACE(mesh.sizes);
    const TextOptions options = options_of(mesh, mesh.ranks == kTwo.ranks ? 0.1 : 0);
    const Trained got = fit_text(strategy_of(mesh), mesh.ranks, configure, options);
    const bool is_four = mesh.sizes == kFour.sizes;
    expect_same(got, fit_text("single_device", 1, configure, options), is_four ? 2e-5 : 1e-5);
    if (!is_four) continue;
    // It is rounding alone: AdamW makes steps of it where gradients are small. In one matrix one device is 5.9e-6 from
    // 64 bits, and sums of four parts are 4.1e-6 from them, on the other side.
    Trained wide = fit_text("single_device", 1, {}, options);
    wide.metrics.clear();
    expect_same(got, wide, 1e-5);
  }
}

TEST(SequenceParallel, WorksWithCheckpointedActivationsAndAveragedWeights) {
  const auto configure = [](TrainerOptions& options) {
    options.activation_checkpointing.units = {"FusedBlock", "TransformerBlock"};
    options.callbacks = {make<WeightAveraging>({})};
    options.accumulate_grad_batches = 2;
  };
  for (const SequenceMesh& mesh : kSequenceMeshes) {
    SCOPED_TRACE(mesh.sizes);
    const TextOptions options = options_of(mesh, mesh.ranks == kTwo.ranks ? 0.1 : 0);
    expect_same(fit_text(strategy_of(mesh), mesh.ranks, configure, options),
                fit_text("single_device", 1, configure, options), 1e-12);
  }
}

TEST(SequenceParallel, KeepsTheResultsOfOperatorsInCheckpointedUnits) {
  const auto configure = [](TrainerOptions& options) {
    options.activation_checkpointing.units = {"FusedBlock", "TransformerBlock"};
    options.activation_checkpointing.keep = {"linear", "scaled_dot_product_attention"};
  };
  for (const SequenceMesh& mesh : {kTwo, kFour, kReplicas, kShards, kStages}) {
    SCOPED_TRACE(mesh.sizes);
    const TextOptions options = options_of(mesh, mesh.ranks == kTwo.ranks ? 0.1 : 0);
    expect_same(fit_text(strategy_of(mesh), mesh.ranks, configure, options), fit_text("single_device", 1, {}, options),
                1e-12);
  }
}

/// Of the weights, in the mean of each; see expect_same.
double distance(const Trained& a, const Trained& b) {
  double most = 0;
  for (size_t i = 0; i < a.weights.size(); ++i)
    if (const std::string& name = a.weights[i].first; !name.ends_with("k_proj.bias") && !name.ends_with("qkv.bias"))
      most = std::max(most, (a.weights[i].second - b.weights[i].second).abs().mean().item<double>());
  return most;
}

/// Sums of 16 bits are rounded in another order: as far from one device as that is from 32 bits, and not as far as a
/// mistake.
TEST(SequenceParallel, TrainsUnderAutocast) {
  const auto in = [](const char* precision) {
    return [=](TrainerOptions& options) {
      options.precision = Spec<Precision>(Config::parse(precision, {}));
      options.max_steps = 5;  // after which roundings have not grown yet
    };
  };
  std::string text;
  for (const SequenceMesh& mesh : {kTwo, kFour, kShards, kStages}) {
    SCOPED_TRACE(mesh.sizes);
    const TextOptions options = options_of(mesh, mesh.ranks == kTwo.ranks ? 0.1 : 0);
    const Trained narrow = fit_text("single_device", 1, in("bf16-mixed"), options);
    const Trained wide = fit_text("single_device", 1, in("32"), options);
    const Trained cut = fit_text(strategy_of(mesh), mesh.ranks, in("bf16-mixed"), options);
    const double rounding = distance(narrow, wide);
    EXPECT_LT(distance(cut, narrow), 2 * rounding);
    text += fmt::format("{}: {:.2g} rounding {:.2g}; ", mesh.sizes, distance(cut, narrow), rounding);
    EXPECT_NEAR(cut.metrics.at("train_loss"), narrow.metrics.at("train_loss"), 0.02);
  }
  RecordProperty("distances", text);
}

TEST(SequenceParallel, TrainsInStagesOfEverySchedule) {
  const auto configure = [](TrainerOptions& trainer) { trainer.accumulate_grad_batches = 2; };
  const TextOptions options{.dropout = 0, .tied = true};
  const Trained expected = fit_text("single_device", 1, configure, options);
  for (const char* schedule : {"[2, 2], schedule: gpipe", "[2, 2], schedule: 1f1b, checkpoint: always",
                               "[1, 1, 1, 1], schedule: interleaved", "[2, 2], schedule: zero_bubble"}) {
    SCOPED_TRACE(schedule);
    const std::string sizes = fmt::format(
        "pipeline: {{size: 2, micro_batches: 2, balance: {}}}, tensor: {{size: 2, sequence_parallel: true}}", schedule);
    expect_same(fit_text(strategy_of({sizes.c_str(), 0}), 4, configure, options), expected, 1e-12);
  }
}

TEST(SequenceParallel, LoadsAndSavesTheCheckpointsOfOthers) {
  const TextOptions options{.dropout = 0};
  const std::vector<std::pair<std::string, int64_t>> meshes{{"single_device", 1},
                                                            {strategy_of(kTwo), kTwo.ranks},
                                                            {"{tensor: 2, start_method: thread}", 2},
                                                            {strategy_of(kShards), kShards.ranks},
                                                            {strategy_of(kStages), kStages.ranks}};
  const auto saves = [](const std::string& path, int64_t batch) {
    return [=](TrainerOptions& trainer) {
      trainer.max_epochs = 2;
      trainer.accumulate_grad_batches = 2;
      trainer.callbacks = {make<LambdaCallback>(
          {.on_train_batch_end = [=](Trainer& own, Module&, const StepOutput&, const Batch&, int64_t) {
            if (own.total_batches() + 1 == batch && !path.empty()) own.save_checkpoint(path);
          }})};
    };
  };
  const Trained expected = fit_text("single_device", 1, saves("", 0), options);
  for (size_t from = 0; from < 3; ++from) {  // saved as one device, with and without sequences that are cut
    const std::string path = fresh_folder("sequences") + "/checkpoint";
    // Inside of a window of two batches.
    const Trained whole = fit_text(meshes[from].first, meshes[from].second, saves(path, 7), options);
    for (size_t to = 0; to < meshes.size(); ++to) {
      const auto is_cut = [&](size_t i) { return meshes[i].first.find("sequence") != std::string::npos; };
      if (!is_cut(from) && !is_cut(to)) continue;
      SCOPED_TRACE(meshes[from].first + " to " + meshes[to].first);
      const Trained resumed = fit_text(meshes[to].first, meshes[to].second, saves("", 0), options, path);
      expect_same(resumed, from == to ? whole : expected, from == to ? 1e-300 : 1e-12);
    }
  }
}

// ---- Memory

constexpr int64_t kMeteredWidth = 128;
constexpr int64_t kMeteredHeads = 4;
constexpr int64_t kMeteredLength = 128;

/// The block of the measurements in docs/parallelism.md.
struct MeteredBlockImpl : torch::nn::Module, HasTensorPlan {
  MeteredBlockImpl() {
    const auto linear = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, torch::nn::Linear(in, out));
    };
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kMeteredWidth})));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kMeteredWidth})));
    qkv = linear("qkv", kMeteredWidth, 3 * kMeteredWidth);
    out = linear("out", kMeteredWidth, kMeteredWidth);
    up = linear("up", kMeteredWidth, 4 * kMeteredWidth);
    down = linear("down", 4 * kMeteredWidth, kMeteredWidth);
    drop = register_module("drop", torch::nn::Dropout(kP));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = qkv(norm1(x)).unflatten(2, {3, -1, kMeteredWidth / kMeteredHeads}).permute({2, 0, 3, 1, 4});
    const at::Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, is_training() ? kP : 0,
                                                              /*is_causal=*/true);
    const at::Tensor y = x + drop(out(mixed.transpose(1, 2).flatten(2)));
    return y + drop(down(at::gelu(up(norm2(y)), "tanh")));
  }
  TensorPlan tensor_plan() const override {
    return {{.pattern = "qkv", .cut = TensorCut::kColumn, .parts = 3, .heads = kMeteredHeads},
            {.pattern = "out", .cut = TensorCut::kRow},
            {.pattern = "up", .cut = TensorCut::kColumn},
            {.pattern = "down", .cut = TensorCut::kRow}};
  }
  static constexpr double kP = 0.1;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
  torch::nn::Dropout drop{nullptr};
};
LEVIN_UNIT(MeteredBlock);

std::atomic<int64_t> saved_bytes = 0;  // of the second block, in the newest step

class Metered : public Module {
 public:
  struct Options {
    static void describe(Schema<Options>&) {}
  };
  explicit Metered(const Options&) {
    first_ = register_module("first", MeteredBlock());
    second_ = register_module("second", MeteredBlock());
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    const ActivationMeter meter(*this, {});
    const at::Tensor x = first_(batch["x"]);
    const int64_t before = meter.now().all;
    const at::Tensor y = second_(x);
    saved_bytes = meter.now().all - before;
    return y.square().mean();
  }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{.optimizer = std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{})};
  }

 private:
  MeteredBlock first_{nullptr}, second_{nullptr};
};

int64_t saved_in_a_block(const std::string& strategy, int64_t ranks) {
  TrainerOptions options = quiet(1);
  options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  options.devices = ranks;
  Trainer trainer(options);
  const Batch examples{{"x", at::randn({4, kMeteredLength, kMeteredWidth})}};
  trainer.fit(make<Metered>({}), DataLoader(std::make_shared<data::TensorDataset>(examples), {.global_batch_size = 4}));
  return saved_bytes;
}

TEST(SequenceParallel, SavesAPartOfTheActivations) {
  const auto one = static_cast<double>(saved_in_a_block("single_device", 1));
  const auto share = [&](const std::string& sizes, int64_t ranks) {
    return static_cast<double>(saved_in_a_block(strategy_of({sizes.c_str(), ranks}), ranks)) / one;
  };
  const double tensor_2 = share("tensor: 2", 2);
  const double tensor_4 = share("tensor: 4", 4);
  const double sequence_2 = share(kTwo.sizes, 2);
  const double sequence_4 = share(kFour.sizes, 4);
  RecordProperty("bytes",
                 fmt::format("{:.0f}: {:.3f} {:.3f} {:.3f} {:.3f}", one, tensor_2, tensor_4, sequence_2, sequence_4));
  EXPECT_NEAR(tensor_2, 0.60, 0.01);
  EXPECT_NEAR(tensor_4, 0.42, 0.01);
  EXPECT_NEAR(sequence_2, 0.50, 0.01);
  EXPECT_NEAR(sequence_4, 0.27, 0.01);
}

// ---- Mistakes

std::string sequence_failure(const std::string& strategy, int64_t ranks, const TextOptions& options) {
  try {
    fit_text(strategy, ranks, {}, options);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(SequenceParallel, SaysWhatItCannotDo) {
  EXPECT_THAT(sequence_failure(strategy_of(kTwo), 2, {.mistake = "odd"}),
              HasSubstr("the sequence of 7 positions that the unit 'net.1' is given cannot be divided over 2 ranks; "
                        "valid: a multiple of 2, such as 6 or 8; hint: pad or cut the examples"));
}

TEST(SequenceParallel, StepsAreNotRecorded) {
  const auto recorded = [](TrainerOptions& options) { options.graph = true; };
  for (const SequenceMesh& mesh : {kTwo, kShards, kStages}) {
    SCOPED_TRACE(mesh.sizes);
    const testing::CapturedLog log;
    expect_same(fit_text(strategy_of(mesh), mesh.ranks, recorded, options_of(mesh)),
                fit_text("single_device", 1, {}, options_of(mesh)), 1e-12);
    EXPECT_THAT(log.text(), HasSubstr("steps are not recorded"));
  }
}

}  // namespace
}  // namespace levin::testing
