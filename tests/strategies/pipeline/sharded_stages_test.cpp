// What a rank holds of a pipeline stage that several ranks divide, and what they must not be asked for.

#include "../../support/tiny.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/core/base/error.h>
#include <levin/core/devices/accounting_allocator.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/optim/sgd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>

namespace levin {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kWidth = 256;
constexpr int64_t kLayersPerStage = 8;
constexpr int64_t kLayerBytes = kWidth * kWidth * 4;

struct DeepOptions {
  static void describe(Schema<DeepOptions>& /*schema*/) {}
};

/// Two stages of equal layers.
class Deep : public Module {
 public:
  using Options = DeepOptions;
  explicit Deep(const Options& /*options*/) {
    net_ = register_module("net", std::make_shared<SequentialImpl>());
    for (int64_t i = 0; i < 2 * kLayersPerStage; ++i)
      net_->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  StepOutput training_step(const Batch& batch, int64_t /*batch_idx*/) override {
    return net_->forward(batch["x"]).square().mean();
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 1e-3});
  }

 private:
  std::shared_ptr<SequentialImpl> net_;
};

TrainerOptions of_mesh(const std::string& mesh, int64_t ranks) {
  TrainerOptions options = testing::quiet(1);
  options.strategy = Spec<Strategy>(Config::parse(mesh, {.source = "test"}));
  options.devices = ranks;
  return options;
}

/// The most bytes of tensors on any rank during a step, in layers: those of four ranks that divide each of two stages.
double layers_held(const std::string& shard_options) {
  AccountingAllocator::install();
  std::mutex mutex;
  int64_t most = 0;
  thread_local int64_t before = 0;
  TrainerOptions options =
      of_mesh(fmt::format("{{pipeline: {{size: 2, micro_batches: 4, balance_by: parameters}}, shard: {{size: 4, {}}}, "
                          "start_method: thread}}",
                          shard_options),
              8);
  options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
      .setup =
          [](Trainer& /*trainer*/, Module& module, Stage /*stage*/) {
            before = AccountingAllocator::of_this_thread().in_use();
            for (const at::Tensor& parameter : module.parameters()) before -= static_cast<int64_t>(parameter.nbytes());
          },
      .on_train_batch_start = [](Trainer& /*trainer*/, Module& /*module*/, const Batch& /*batch*/,
                                 int64_t /*batch_idx*/) { AccountingAllocator::of_this_thread().restart_peak(); },
      .on_train_batch_end =
          [&](Trainer& trainer, Module& /*module*/, const StepOutput& /*output*/, const Batch& /*batch*/,
              int64_t /*batch_idx*/) {
            if (trainer.global_step() < 2) return;
            const std::lock_guard lock(mutex);
            most = std::max(most, AccountingAllocator::of_this_thread().peak() - before);
          }})};
  Trainer trainer(options);
  trainer.fit(make<Deep>({}), DataLoader(std::make_shared<data::TensorDataset>(Batch{{"x", at::ones({48, kWidth})}}),
                                         {.global_batch_size = 16}));
  return static_cast<double>(most) / kLayerBytes;
}

TEST(ShardedStages, HoldLessTheMoreIsDivided) {
  constexpr double kOthers = 1.5;  // activations, batches, messages
  const double whole = kLayersPerStage;
  const double part = whole / 4;
  // Parameters and gradients whole.
  EXPECT_GE(layers_held("stage: 1"), 2 * whole);
  // A part of the gradients; the whole ones of a layer that runs and of one that is reduced, and what becomes of these.
  EXPECT_LE(layers_held("stage: 2, bucket_cap_mb: 0.1"), whole + part + 2 + 1 + kOthers);
  // A part of the parameters as well, and the whole ones of a layer and the one that follows.
  EXPECT_LE(layers_held("stage: 3"), part + part + 2 + 2 + kOthers);
}

std::string refusal_of(const std::string& mesh) {
  try {
    Trainer trainer(of_mesh(mesh, 4));
    trainer.fit(make<Deep>({}), testing::tiny_loader());
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(ShardedStages, RefuseWhatTheyCannotDo) {
  EXPECT_THAT(
      refusal_of("{pipeline: {size: 2, schedule: zero_bubble}, shard: {size: 2, stage: 2}, start_method: thread}"),
      HasSubstr("pipeline.schedule is zero_bubble"));
  EXPECT_THAT(refusal_of("{name: pipeline_threads, data_parallel: 2, shard_stage: 3}"),
              HasSubstr("pipeline.shard_optimizer is false"));
}

}  // namespace
}  // namespace levin
