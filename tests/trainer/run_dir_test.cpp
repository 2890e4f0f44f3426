#include "tests/support/tiny.h"

#include <levin/callbacks/model_checkpoint.h>
#include <levin/callbacks/pause_training.h>
#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace levin::testing {
namespace {

/// Its schedule and its dropout show whether a resumed run is the same.
class Scheduled : public TinyModule {
 public:
  using TinyModule::TinyModule;
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{
        .optimizer = std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = options_.lr}),
        .scheduler = {.name = "cosine", .interval = Interval::kStep}};
  }
};

struct RunInFolder {
  std::vector<at::Tensor> weights;
  int64_t steps = 0;
  std::string folder;
};

/// Trains 6 epochs of 5 batches in the folder, or until it pauses, from its last checkpoint if there is one.
RunInFolder train(const std::string& folder, int64_t pause_after = 0) {
  seed_everything(std::filesystem::exists(folder) ? 99 : 7);
  TrainerOptions options = quiet(6);
  options.run_dir = folder;
  options.enable_checkpointing = true;
  options.callbacks = {make<ModelCheckpoint>({.monitor = "val_loss", .save_last = true})};
  if (pause_after > 0) options.callbacks.emplace_back(make<PauseTraining>({.after_epochs = pause_after}));
  Trainer trainer(options);
  const auto module = make<Scheduled>({.dropout = 0.3});
  trainer.fit(module, tiny_loader(), tiny_loader(16, 8, false), "auto");
  return {weights(*module), trainer.global_step(), trainer.run_directory()};
}

class RunDir : public ::testing::Test {
 protected:
  const std::string root_ = fresh_folder("run_dir");
};

TEST_F(RunDir, IsTheRunsFolderAndARunThatIsResumedGoesOnInIt) {
  const RunInFolder first = train(root_ + "/a/run", 2);
  EXPECT_EQ(first.folder, root_ + "/a/run");
  EXPECT_EQ(first.steps, 10);
  EXPECT_TRUE(std::filesystem::exists(root_ + "/a/run/checkpoints/last/manifest.json"));
  const RunInFolder second = train(root_ + "/a/run");
  EXPECT_EQ(second.folder, root_ + "/a/run");
  EXPECT_EQ(second.steps, 30);
  EXPECT_FALSE(std::filesystem::exists(root_ + "/a/version_0"));
}

TEST_F(RunDir, LastNeedsACheckpointInItAndAutoDoesNot) {
  TrainerOptions options = quiet(1);
  options.run_dir = root_ + "/empty";
  EXPECT_THROW(Trainer(options).fit(make<TinyModule>({}), tiny_loader(), {}, "last"), Error);
  EXPECT_NO_THROW(Trainer(options).fit(make<TinyModule>({}), tiny_loader(), {}, "auto"));
}

using Pause = RunDir;

TEST_F(Pause, IsNotToBeSeenInWhatARunEndsWith) {
  const RunInFolder whole = train(root_ + "/whole");
  for (const int64_t epochs : {1, 3}) EXPECT_EQ(train(root_ + "/paused", epochs).steps, 5 * epochs);
  const RunInFolder resumed = train(root_ + "/paused");
  EXPECT_EQ(resumed.steps, whole.steps);
  EXPECT_TRUE(identical(resumed.weights, whole.weights));
}

TEST_F(Pause, ARunThatIsThereAlreadyTrainsNoFurther) {
  train(root_ + "/paused", 2);
  EXPECT_EQ(train(root_ + "/paused", 2).steps, 10);
}

}  // namespace
}  // namespace levin::testing
