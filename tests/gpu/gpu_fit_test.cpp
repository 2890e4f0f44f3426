#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/log.h>
#include <levin/core/base/seed.h>

#include <tests/support/tiny.h>

#include <tuple>

namespace levin {
namespace {

using testing::quiet;
using testing::TinyModule;
using testing::weights;

/// Skipped, with the reason, where no CUDA device can be used.
class GpuFit : public ::testing::Test {
 protected:
  void SetUp() override {
    if (accelerator_of(at::kCUDA).device_count() == 0) GTEST_SKIP() << "no CUDA device can be used here";
  }
};

TrainerOptions on(const char* accelerator) {
  TrainerOptions options = quiet(3);
  options.accelerator = accelerator;
  options.accumulate_grad_batches = 2;
  options.gradient_clip_val = 1.0;
  return options;
}

TEST_F(GpuFit, AgreesWithTheCpu) {
  const auto train = [](const char* accelerator, bool pinned) {
    seed_everything(4);
    auto module = make<TinyModule>({});
    Trainer trainer(on(accelerator));
    const DataLoaderOptions loader{.batch_size = 8, .shuffle = true, .num_workers = 1, .pin_memory = pinned};
    trainer.fit(module, DataLoader(testing::tiny_dataset(), loader), testing::tiny_loader(16));
    return std::pair(weights(*module), trainer.callback_metrics().at("val_loss"));
  };
  const auto [cpu, cpu_loss] = train("cpu", false);
  for (const bool pinned : {false, true}) {
    const auto [gpu, gpu_loss] = train("cuda", pinned);
    ASSERT_EQ(gpu.size(), cpu.size());
    for (size_t i = 0; i < cpu.size(); ++i) {
      EXPECT_TRUE(gpu[i].is_cuda());
      EXPECT_TRUE(gpu[i].cpu().allclose(cpu[i], 1e-3, 1e-4)) << i;
    }
    EXPECT_NEAR(gpu_loss, cpu_loss, 1e-3);
  }
}

TEST_F(GpuFit, ReplaysStepsFromGraphs) {
  for (const char* precision : {"32-true", "16-mixed", "bf16-mixed"}) {
    const auto train = [&](bool graphs) {
      seed_everything(4);
      auto module = make<TinyModule>({});
      TrainerOptions options = quiet(3);
      options.accelerator = "cuda";
      options.precision = precision;
      options.gradient_clip_val = 1.0;
      options.graph = graphs;
      std::string log;
      log::set_sink([&](const std::string& line) { log += line + "\n"; });
      Trainer trainer(options);
      trainer.fit(module, testing::tiny_loader(44), testing::tiny_loader(16));
      log::set_sink(nullptr);
      EXPECT_EQ(log.find("[graph] recorded the step") != std::string::npos, graphs) << log;
      EXPECT_EQ(log.find("not recorded"), std::string::npos) << log;
      return std::pair(weights(*module), trainer.callback_metrics().at("train_loss_epoch"));
    };
    const auto [plain, plain_loss] = train(false);
    const auto [replayed, replayed_loss] = train(true);
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(replayed[i].allclose(plain[i], 1e-3, 1e-4)) << i;
    EXPECT_NEAR(replayed_loss, plain_loss, 1e-3) << precision;
  }
}

TEST_F(GpuFit, WhatCannotBeRecordedIsSaidAndTrainsWithoutGraphs) {
  struct Waits : TinyModule {
    using TinyModule::TinyModule;
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      if (first_->weight.sum().item<float>() > 1e9) throw std::runtime_error("too large");
      return TinyModule::training_step(batch, batch_idx);
    }
  };
  TrainerOptions options = quiet(2);
  options.accelerator = "cuda";
  options.graph = true;
  std::string log;
  log::set_sink([&](const std::string& line) { log += line + "\n"; });
  Trainer trainer(options);
  auto module = make<Waits>({});
  trainer.fit(module, testing::tiny_loader());
  log::set_sink(nullptr);
  EXPECT_NE(log.find("[graph] steps are not recorded"), std::string::npos) << log;
  EXPECT_EQ(trainer.global_step(), 10);
}

TEST_F(GpuFit, PageLockedBatchesThatAreCopiedAheadChangeNothing) {
  const auto train = [](bool pinned) {
    seed_everything(4);
    auto module = make<TinyModule>({.dropout = 0.3});
    Trainer trainer(on("cuda"));
    const DataLoaderOptions loader{.batch_size = 8, .shuffle = true, .num_workers = 1, .pin_memory = pinned};
    const DataLoader data(testing::tiny_dataset(), loader);
    trainer.fit(module, data, data);
    const double val_loss = trainer.callback_metrics().at("val_loss");
    const auto predictions = trainer.predict(module, data);
    return std::tuple(weights(*module), val_loss, Batch::concatenate(predictions.at(0))["y"]);
  };
  const auto [expected, expected_loss, expected_predictions] = train(false);
  const auto [got, loss, predictions] = train(true);
  EXPECT_TRUE(testing::identical(got, expected));
  EXPECT_EQ(loss, expected_loss);
  EXPECT_TRUE(predictions.equal(expected_predictions));
}

TEST_F(GpuFit, ResumesToTheBit) {
  const std::string path = testing::fresh_folder("gpu") + "/c";
  const auto train = [&](int64_t epochs, const std::string& ckpt) {
    seed_everything(4);
    auto module = make<TinyModule>({.dropout = 0.3});
    TrainerOptions options = on("cuda");
    options.max_epochs = epochs;
    Trainer trainer(options);
    trainer.fit(module, testing::tiny_loader(), {}, ckpt);
    if (ckpt.empty() && epochs == 1) trainer.save_checkpoint(path);
    return weights(*module);
  };
  const auto whole = train(2, "");
  train(1, "");
  EXPECT_TRUE(testing::identical(train(2, path), whole));
}

}  // namespace
}  // namespace levin
