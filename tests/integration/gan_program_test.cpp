// The GAN example under every strategy that takes manual optimization, by one line of configuration.

#include "../support/run_program.h"
#include "tests/support/tree.h"
#include "tiny_fashion.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace levin {
namespace {

namespace fs = std::filesystem;

const std::string kGan = testing::build_path("bin/gan");

class GanProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kGan)) GTEST_SKIP() << "there is no " << kGan << "; hint: build the examples";
    testing::write_tiny_fashion(folder_.path("data"), 64, 10);
  }

  testing::ProgramResult fit(const std::string& strategy, int devices, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {kGan,
                                      "fit",
                                      "--config",
                                      testing::source_path("examples/gan/gan.yaml"),
                                      "--data.root=" + folder_.path("data"),
                                      "--data.batch_size=8",
                                      "--data.num_workers=0",
                                      "--model.channels=2",
                                      "--trainer.max_epochs=2",
                                      "--trainer.log_every_n_steps=4",
                                      "--trainer.accelerator=cpu",
                                      "--trainer.strategy=" + strategy,
                                      "--trainer.devices=" + std::to_string(devices),
                                      "--trainer.default_root_dir=" + runs(strategy)};
    words.insert(words.end(), more.begin(), more.end());
    return testing::run_program(words);
  }
  std::string runs(const std::string& strategy) const { return folder_.path("runs-" + strategy); }

  testing::TemporaryFolder folder_;
};

TEST_F(GanProgram, EveryStrategyWithRanksTrainsItAndLogsItsImages) {
  for (const char* strategy : {"single_device", "ddp", "ddp_spawn", "ddp_threads"}) {
    const testing::ProgramResult result = fit(strategy, std::string(strategy) == "single_device" ? 1 : 2);
    ASSERT_EQ(result.status, 0) << strategy << "\n" << result.out << result.err;
    const std::string run = runs(strategy) + "/version_0";
    const std::string metrics = testing::read_text(run + "/metrics.csv");
    EXPECT_NE(metrics.find("g_loss"), std::string::npos) << metrics;
    EXPECT_NE(metrics.find("d_loss"), std::string::npos) << metrics;
    int64_t images = 0;
    for (const auto& entry : fs::directory_iterator(run)) {
      if (!entry.path().filename().string().starts_with("events.")) continue;
      const std::string events = testing::read_text(entry.path().string());
      for (size_t at = 0; (at = events.find("\x89PNG", at)) != std::string::npos; ++at) ++images;
    }
    EXPECT_EQ(images, 2) << strategy << ": one an epoch, by rank 0 alone";
  }
}

TEST_F(GanProgram, AWindowOfAnEpochThatIsShorterStepsToo) {
  for (const char* strategy : {"single_device", "ddp_threads"}) {
    const testing::ProgramResult result =
        fit(strategy, std::string(strategy) == "single_device" ? 1 : 2,
            {"--model.accumulate_grad_batches=2", "--trainer.limit_train_batches=3", "--trainer.log_every_n_steps=1"});
    ASSERT_EQ(result.status, 0) << strategy << "\n" << result.out << result.err;
    // Two windows in each of two epochs, and in each a step of both optimizers.
    EXPECT_TRUE(fs::exists(runs(strategy) + "/version_0/checkpoints/epoch=1-step=8"))
        << testing::read_text(runs(strategy) + "/version_0/metrics.csv");
  }
}

TEST_F(GanProgram, GoesOnFromItsLastCheckpoint) {
  ASSERT_EQ(fit("single_device", 1, {"--trainer.max_epochs=1"}).status, 0);
  const testing::ProgramResult on = fit("single_device", 1, {"--ckpt", "last"});
  EXPECT_EQ(on.status, 0) << on.err;
}

TEST_F(GanProgram, ReplicasAreRefused) {
  const testing::ProgramResult result = fit("dp", 2);
  EXPECT_EQ(result.status, 2) << result.err;
  EXPECT_NE(result.err.find("'dp' does not work with manual optimization"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace levin
