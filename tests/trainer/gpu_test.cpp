#include <levin/core/base/seed.h>
#include <levin/core/devices/device_spec.h>

#include <tests/support/tiny.h>

namespace levin {
namespace {

using testing::quiet;
using testing::TinyModule;
using testing::weights;

/// Skipped, with the reason, where no CUDA device can be used.
class GpuFit : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device can be used here";
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
