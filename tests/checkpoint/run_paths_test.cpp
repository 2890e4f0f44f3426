#include <levin/core/checkpoint/run_paths.h>

#include "../support/tiny.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace levin {
namespace {

namespace fs = std::filesystem;

/// Works in a folder of its own, with a run whose checkpoint `last` lies beside `best`.
class RunPathsTest : public ::testing::Test {
 protected:
  RunPathsTest() : before_(fs::current_path()), folder_(testing::fresh_folder("run_paths")) {
    fs::create_directories(folder_ + "/here");
    fs::current_path(folder_ + "/here");
    for (const char* name : {"last", "best"}) fs::create_directories(std::string("runs/version_0/checkpoints/") + name);
    fs::create_directories("elsewhere/other");
  }
  ~RunPathsTest() override { fs::current_path(before_); }

  /// Saves a path as a checkpoint's state of `last` would.
  void save(const std::string& path, const std::string& run = "runs/version_0") {
    RunPaths paths;
    paths.set_run(run);
    state_["path"] = paths.to_saved(path);
    paths.save(state_);
    RunPaths::save_run(tree_, run + "/checkpoints/last", run);
  }
  std::string load(const std::string& checkpoint) const {
    RunPaths paths;
    if (!checkpoint.empty()) paths.note_checkpoint(checkpoint, tree_);
    paths.load(state_);
    return paths.to_path(state_.at("path").as_string());
  }

  const fs::path before_;
  const std::string folder_;
  State state_ = State::map();
  State tree_ = State::map();
};

TEST_F(RunPathsTest, KeepTheFormOfTheCheckpointsPath) {
  save("runs/version_0/checkpoints/best");
  EXPECT_EQ(state_.at("path").as_string(), "checkpoints/best");
  EXPECT_EQ(load("runs/version_0/checkpoints/last"), "runs/version_0/checkpoints/best");
  EXPECT_EQ(load("./runs/version_0/checkpoints/last/"), "runs/version_0/checkpoints/best");
  EXPECT_EQ(load(folder_ + "/here/runs/version_0/checkpoints/last"), folder_ + "/here/runs/version_0/checkpoints/best");
  EXPECT_EQ(load(""), "runs/version_0/checkpoints/best") << "of a process that ended with its call";
}

TEST_F(RunPathsTest, FindsWhatWasMovedOrIsSeenFromElsewhere) {
  for (const std::string run : {"runs/version_0", "absolute"}) {
    SCOPED_TRACE(run);
    fs::current_path(folder_ + "/here");
    save("runs/version_0/checkpoints/best", run == "absolute" ? folder_ + "/here/runs/version_0" : run);
    fs::current_path(folder_);
    EXPECT_EQ(load("here/runs/version_0/checkpoints/last"), "here/runs/version_0/checkpoints/best");
    EXPECT_EQ(load(""), folder_ + "/here/runs/version_0/checkpoints/best");
    fs::rename("here/runs/version_0", "moved");
    EXPECT_EQ(load("moved/checkpoints/last"), "moved/checkpoints/best");
    EXPECT_EQ(load("somewhere/else/last"), "") << "the checkpoint was copied alone, and the run is gone";
    fs::rename("moved", "here/runs/version_0");
    EXPECT_EQ(load("somewhere/else/last"), folder_ + "/here/runs/version_0/checkpoints/best");
  }
}

TEST_F(RunPathsTest, ReachOutOfTheRun) {
  save("elsewhere/other");
  EXPECT_EQ(state_.at("path").as_string(), "../../elsewhere/other");
  EXPECT_EQ(load("runs/version_0/checkpoints/last"), "elsewhere/other");
  fs::rename("runs", "kept");  // what lies outside was not moved along
  fs::rename("kept", folder_ + "/kept");
  EXPECT_EQ(load(folder_ + "/kept/version_0/checkpoints/last"), "elsewhere/other");
}

TEST_F(RunPathsTest, FilesThatAreGoneHaveNone) {
  save("runs/version_0/checkpoints/gone");
  EXPECT_EQ(load("runs/version_0/checkpoints/last"), "");
  save("");
  EXPECT_EQ(load("runs/version_0/checkpoints/last"), "");
}

TEST_F(RunPathsTest, ReadStatesWithPathsOfTheWorkingFolder) {
  state_["path"] = "runs/version_0/checkpoints/best";
  EXPECT_EQ(load(""), "runs/version_0/checkpoints/best");
  EXPECT_EQ(load("runs/version_0/checkpoints/last"), "runs/version_0/checkpoints/best");
  fs::current_path(folder_);
  EXPECT_EQ(load("here/runs/version_0/checkpoints/last"), "here/runs/version_0/checkpoints/best");
  EXPECT_EQ(load(""), "");
}

TEST_F(RunPathsTest, WithoutARunStayAsTheyAre) {
  RunPaths paths;
  paths.save(state_);
  state_["path"] = paths.to_saved("runs/version_0/checkpoints/best");
  EXPECT_EQ(state_.at("path").as_string(), "runs/version_0/checkpoints/best");
  EXPECT_EQ(load(""), "runs/version_0/checkpoints/best");
}

}  // namespace
}  // namespace levin
