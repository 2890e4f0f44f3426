// Runs that are moved, or that go on from another working folder.

#include "../support/captured_log.h"
#include "../support/tiny.h"

#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/checkpoint/checkpoint.h>

#include <gmock/gmock.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace levin {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;
using ::testing::Not;

/// Scores its epochs 1, 3, 4, 5: the first is the best.
class Worsens : public testing::TinyModule {
 public:
  explicit Worsens(const Options& options) : TinyModule(options) {}
  StepOutput validation_step(const Batch& batch, int64_t batch_idx) override {
    log("score", trainer().current_epoch() == 0 ? 1.0 : 2.0 + static_cast<double>(trainer().current_epoch()));
    return TinyModule::validation_step(batch, batch_idx);
  }
};

struct MovedOutcome {
  std::string best;
  std::vector<std::string> kept;
  std::string said;
};

class MovedRun : public ::testing::TestWithParam<const char*> {
 protected:
  MovedRun() : before_(fs::current_path()), folder_(testing::fresh_folder("moved_run")) { fs::current_path(folder_); }
  ~MovedRun() override { fs::current_path(before_); }

  static MovedOutcome fit(const std::string& root, int64_t epochs, const std::string& ckpt = "",
                          const std::string& run_dir = "", const std::string& dirpath = "") {
    const auto best = make<ModelCheckpoint>(
        {.monitor = "score", .save_top_k = 2, .save_last = true, .filename = "{epoch}", .dirpath = dirpath});
    TrainerOptions options = testing::quiet(epochs);
    options.enable_checkpointing = true;
    options.default_root_dir = root;
    options.run_dir = run_dir;
    options.callbacks = {best};
    options.strategy = GetParam();
    options.devices = std::string(GetParam()) == "single_device" ? 1 : 2;
    const testing::CapturedLog log;
    Trainer(options).fit(make<Worsens>({}), testing::tiny_loader(16, 4), testing::tiny_loader(8, 4), ckpt);
    MovedOutcome run{.best = best->best_model_path(), .said = log.text()};
    for (const auto& item : best->best_k_models()) run.kept.push_back(item.path);
    return run;
  }

  const fs::path before_;
  const std::string folder_;
};

TEST_P(MovedRun, KnowsItsCheckpointsFromAnotherWorkingFolder) {
  EXPECT_EQ(fit("runs", 2).best, "runs/version_0/checkpoints/epoch=0");
  fs::create_directories("deep/er");
  fs::current_path("deep/er");
  const MovedOutcome resumed = fit("../../runs", 3, "last");
  EXPECT_EQ(resumed.best, "../../runs/version_0/checkpoints/epoch=0");
  EXPECT_EQ(resumed.kept, (std::vector<std::string>{"../../runs/version_0/checkpoints/epoch=0",
                                                    "../../runs/version_0/checkpoints/epoch=1"}));
  EXPECT_THAT(resumed.said, Not(HasSubstr("cannot be found")));
}

TEST_P(MovedRun, KnowsItsCheckpointsInAnotherPlace) {
  fit("runs", 2);
  fs::rename("runs", "archive");
  EXPECT_EQ(fit("archive", 3, "last").best, "archive/version_0/checkpoints/epoch=0");
  // A run that goes on in its own folder removes what is superseded, in whatever form the path is given.
  fs::rename("archive/version_0", "mine");
  const MovedOutcome mine = fit("runs", 4, folder_ + "/mine/checkpoints/last", "mine");
  EXPECT_EQ(fs::absolute(mine.best), fs::path(folder_) / "mine/checkpoints/epoch=0");
  EXPECT_TRUE(fs::exists("mine/checkpoints/last"));
  EXPECT_FALSE(fs::exists("mine/checkpoints/last-v1"));
}

TEST_P(MovedRun, KnowsCheckpointsOutsideOfTheRun) {
  fit("runs", 2, "", "", "kept");
  fs::create_directories("deep");
  fs::current_path("deep");
  EXPECT_EQ(fit("../runs", 3, "../kept/last", "", "../kept").best, "../kept/epoch=0");
}

TEST_P(MovedRun, SaysWhichCheckpointsAreGone) {
  fit("runs", 2);
  fs::remove_all("runs/version_0/checkpoints/epoch=0");
  const MovedOutcome resumed = fit("runs", 3, "last");
  EXPECT_EQ(resumed.best, "runs/version_0/checkpoints/epoch=1");
  if (std::string(GetParam()) != "ddp_spawn")  // whose ranks write to standard error
    EXPECT_THAT(resumed.said, HasSubstr("1 of the 2 best checkpoints that the run had kept cannot be found"));
}

INSTANTIATE_TEST_SUITE_P(Strategies, MovedRun, ::testing::Values("single_device", "ddp_threads", "ddp_spawn"),
                         [](const auto& info) { return std::string(info.param); });

/// The command line's `--ckpt best`, in another process.
TEST(MovedRuns, AreSearchedForTheBest) {
  const fs::path before = fs::current_path();
  const std::string folder = testing::fresh_folder("moved_best");
  fs::current_path(folder);
  TrainerOptions options = testing::quiet(2);
  options.enable_checkpointing = true;
  options.default_root_dir = "runs";
  options.callbacks = {make<ModelCheckpoint>(
      {.monitor = "score", .save_top_k = 2, .filename = "{epoch}", .dirpath = "runs/version_0/checkpoints/of_mine"})};
  options.callbacks.emplace_back(make<ModelCheckpoint>({.monitor = "", .filename = "newest"}));
  Trainer(options).fit(make<Worsens>({}), testing::tiny_loader(16, 4), testing::tiny_loader(8, 4));
  fs::rename("runs", "moved");
  options.default_root_dir = "moved";
  options.callbacks = {};
  const testing::CapturedLog log;
  Trainer(options).validate(make<Worsens>({}), {testing::tiny_loader(8, 4)}, "best", /*verbose=*/false);
  EXPECT_THAT(log.text(), HasSubstr("moved/version_0/checkpoints/of_mine/epoch=0"));
  fs::current_path(before);
}

}  // namespace
}  // namespace levin
