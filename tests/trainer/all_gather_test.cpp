#include <levin/core/base/seed.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/sequential.h>
#include <levin/core/optim/sgd.h>
#include <levin/core/trainer/trainer.h>

#include "../support/tiny.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>

#include <optional>
#include <string>
#include <vector>

namespace levin {
namespace {

using testing::quiet;
using testing::tiny_dataset;
using testing::weights;

/// Pulls the embeddings of all examples of a batch apart, those of other ranks included: a loss that is no mean over
/// examples.
class Contrastive : public Module {
 public:
  Contrastive() {
    net_ = register_module("net", Sequential(torch::nn::Linear(4, 5), torch::nn::Tanh(), torch::nn::Linear(5, 3)));
  }

  StepOutput training_step(const Batch& batch, int64_t) override {
    const at::Tensor own = torch::tanh(net_(batch["x"]));
    const at::Tensor all = all_gather(own, sync_grads).flatten(0, 1);
    EXPECT_EQ(all.size(0), 8);
    EXPECT_EQ(all.requires_grad(), sync_grads && own.requires_grad());  // not what a pipeline's first stage has
    EXPECT_FALSE(all_gather(own).requires_grad());
    const at::Tensor of_all = torch::logsumexp(all.matmul(all.t()).flatten(), 0);
    return sync_grads ? of_all : of_all + own.square().mean();
  }
  OptimizerConfigs configure_optimizers() override {
    return std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1});
  }

  bool sync_grads = true;

 private:
  Sequential net_{nullptr};
};

class Detached : public Contrastive {
 public:
  Detached() { sync_grads = false; }
};

std::vector<at::Tensor> train(const std::string& strategy, int64_t devices) {
  seed_everything(5);
  const auto module = make<Contrastive>();
  TrainerOptions options = quiet(2);
  options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
  options.devices = devices;
  Trainer(options).fit(module, DataLoader(tiny_dataset(40), {.global_batch_size = 8}));
  return weights(*module);
}

TEST(AllGather, GradientsGoBackToTheRankThatEachPartIsFrom) {
  const auto expected = train("single_device", 1);
  for (const auto& [strategy, devices] : std::vector<std::pair<std::string, int64_t>>{
           {"ddp_threads", 2},
           {"ddp_threads", 4},
           {"ddp_spawn", 2},
           {"{name: sharded_threads, stage: 3}", 2},
           {"{name: sharded_threads, stage: 3, shard_group: 2}", 4},
           {"{name: pipeline_threads, balance: [2, 1], micro_batches: 1}", 2},
           {"{name: pipeline_threads, balance: [2, 1], micro_batches: 1, data_parallel: 2}", 4},
           {"{name: pipeline_threads, balance: [2, 1], micro_batches: 1, data_parallel: 4, shard_optimizer: true, "
            "shard_group: 2}",
            8}}) {
    const auto got = train(strategy, devices);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(got[i].allclose(expected[i], 1e-5, 1e-6)) << strategy << " " << devices << ", tensor " << i;
  }
}

TEST(AllGather, WithoutGradientsItIsDetached) {
  for (const auto* strategy :
       {"ddp_threads", "{name: pipeline_threads, balance: [2, 1], micro_batches: 1, data_parallel: 2}"}) {
    const auto module = make<Detached>();
    TrainerOptions options = quiet(1);
    options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
    options.devices = std::string(strategy) == "ddp_threads" ? 2 : 4;
    Trainer(options).fit(module, DataLoader(tiny_dataset(16), {.global_batch_size = 8}));
  }
}

/// Finds the nearest other example of each in a batch of all ranks, and counts examples of all ranks by hand.
class Retrieval : public Contrastive {
 public:
  StepOutput validation_step(const Batch& batch, int64_t) override {
    const at::Tensor all = all_gather(batch["x"]).flatten(0, 1);
    const at::Tensor distances = torch::cdist(all, all) + 1e9 * torch::eye(all.size(0));
    log("val_nearest", std::get<0>(distances.min(1)).mean());
    count_ += batch.size();
    return {};
  }
  void on_validation_epoch_end() override {
    log("val_examples", all_gather(torch::tensor(count_)).sum());
    count_ = 0;
  }

 private:
  int64_t count_ = 0;
};

TEST(AllGather, StagesOfAPipelineCountOnce) {
  std::optional<MetricMap> expected;
  for (const auto& [strategy, devices] : std::vector<std::pair<std::string, int64_t>>{
           {"single_device", 1},
           {"ddp_threads", 2},
           {"{name: pipeline_threads, balance: [2, 1]}", 2},
           {"{name: pipeline_threads, balance: [2, 1], data_parallel: 2}", 4},
           {"{name: pipeline_threads, balance: [2, 1], data_parallel: 4, shard_optimizer: true, shard_group: 2}", 8}}) {
    TrainerOptions options = quiet(1);
    options.strategy = Spec<Strategy>(Config::parse(strategy, {}));
    options.devices = devices;
    Trainer trainer(options);
    const MetricMap metrics =
        trainer.validate(make<Retrieval>(), {DataLoader(tiny_dataset(32), {.global_batch_size = 8})}, "", false).at(0);
    EXPECT_EQ(metrics.at("val_examples"), 32) << strategy;
    if (!expected) expected = metrics;
    EXPECT_NEAR(metrics.at("val_nearest"), expected->at("val_nearest"), 1e-5) << strategy;
  }
}

TEST(Freeze, AFrozenPartKeepsItsWeightsAndIsTrainedOnceItIsThawed) {
  const auto module = std::make_shared<testing::TinyModule>(testing::TinyOptions{});
  module->freeze();
  EXPECT_FALSE(module->is_training());
  for (const auto& parameter : module->parameters()) EXPECT_FALSE(parameter.requires_grad());
  module->unfreeze();
  EXPECT_TRUE(module->is_training());
  const auto first = module->named_modules()["first"];
  freeze(*first);
  const auto before = weights(*module);
  Trainer(quiet(1)).fit(module, testing::tiny_loader());
  const auto after = weights(*module);
  EXPECT_FALSE(first->is_training()) << "its mode is the user's";
  EXPECT_TRUE(after[0].equal(before[0]) && after[1].equal(before[1])) << "first";
  EXPECT_FALSE(after[2].equal(before[2])) << "second";
  unfreeze(*first);
  Trainer(quiet(1)).fit(module, testing::tiny_loader());
  EXPECT_FALSE(weights(*module)[0].equal(before[0]));
}

}  // namespace
}  // namespace levin
