#include <levin/core/sweep/sweep_folder.h>

#include <levin/core/base/error.h>

#include <gmock/gmock-matchers.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

namespace levin::sweep {
namespace {

using ::testing::HasSubstr;

Config yaml(const std::string& text) { return Config::parse(text, {.source = "test"}); }

std::string folder_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class SweepFolders : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(root_); }

  const std::string root_ = ::testing::TempDir() + "sweep_folders";
  const Config description_ = yaml("{options: [model.lr], monitor: val_loss, precision: '32', lr: 1e-3}");
};

TEST_F(SweepFolders, AreUsedBySweepsOneAfterAnother) {
  {
    SweepFolder folder(root_ + "/a", description_);
    EXPECT_EQ(folder.read_table(), "");
    folder.write_table("run,status\n");
  }
  EXPECT_EQ(SweepFolder(root_ + "/a", description_).read_table(), "run,status\n");
}

TEST_F(SweepFolders, RefuseASecondSweepAtTheSameTime) {
  const SweepFolder folder(root_ + "/a", description_);
  EXPECT_THAT(folder_error([&] { SweepFolder(root_ + "/a", description_); }),
              HasSubstr("is in use by the sweep of process " + std::to_string(getpid())));
}

TEST_F(SweepFolders, RefuseAnotherSweepAndSayWhatDiffers) {
  { const SweepFolder folder(root_ + "/a", description_); }
  const Config other = yaml("{options: [model.lr], monitor: val_acc, precision: '32', lr: 1e-3}");
  EXPECT_THAT(folder_error([&] { SweepFolder(root_ + "/a", other); }),
              HasSubstr("has another sweep; differing: monitor: val_loss there, val_acc here; hint"));
}

TEST_F(SweepFolders, AreNamedBelowThatOfAllSweeps) {
  EXPECT_EQ(named_folder("runs/sweeps", "lr"), "runs/sweeps/lr");
  EXPECT_EQ(named_folder("runs/sweeps", "tuesday/lr..2"), "runs/sweeps/tuesday/lr..2");
  for (const char* name : {"../../up", "..", ".", "a/../../../b", "./a", "/../a"})
    EXPECT_THAT(folder_error([&] { named_folder("runs/sweeps", name); }),
                HasSubstr("sweep.name leaves the folder of all sweeps, runs/sweeps; got '" + std::string(name) +
                          "'; valid: a name without '.' and '..'; hint: sweep.dir"));
}

TEST_F(SweepFolders, RefuseAFolderOfOtherFiles) {
  std::filesystem::create_directories(root_ + "/a");
  std::ofstream(root_ + "/a/thesis.tex") << "text";
  EXPECT_THAT(folder_error([&] { SweepFolder(root_ + "/a", description_); }), HasSubstr("is no folder of a sweep"));
}

/// A sweep that was killed at its very start leaves no description yet.
TEST_F(SweepFolders, TakeUpOneWithoutADescription) {
  std::filesystem::create_directories(root_ + "/a");
  for (const char* name : {"/a/.lock", "/a/sweep.yaml.unfinished"}) std::ofstream(root_ + name) << "x: ";
  EXPECT_EQ(folder_error([&] { SweepFolder(root_ + "/a", description_); }), "no error");
}

TEST_F(SweepFolders, TheNewestVersionIsTakenUpUntilItIsDone) {
  EXPECT_EQ(next_version(root_, description_), root_ + "/version_0");
  {
    SweepFolder folder(root_ + "/version_0", description_);
    folder.write_table("run,status\n0000,finished\n0001,running\n");
  }
  EXPECT_EQ(next_version(root_, description_), root_ + "/version_0");
  EXPECT_EQ(next_version(root_, yaml("{options: [seed]}")), root_ + "/version_1");
  SweepFolder(root_ + "/version_0", description_).write_table("run,status\n0000,finished\n0001,stopped_early\n");
  EXPECT_EQ(next_version(root_, description_), root_ + "/version_1");
}

}  // namespace
}  // namespace levin::sweep
