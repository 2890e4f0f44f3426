// The example program from start to end, as a user runs it: real processes, files, signals.

#include "../support/run_program.h"
#include "printed_table.h"
#include "tests/support/tree.h"
#include "tiny_fashion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace levin {
namespace {

namespace fs = std::filesystem;
using testing::ProgramResult;
using testing::read_text;
using testing::RunningProgram;

const std::string kProgram = testing::build_path("bin/fashion_mnist");
const std::string kCheckpointTool = testing::build_path("bin/levin-checkpoint");
const std::string kMlp = testing::source_path("examples/fashion_mnist/mlp.yaml");
const std::string kCnn = testing::source_path("examples/fashion_mnist/cnn.yaml");
constexpr const char* kRealData = "/usr/share/datasets/fashion-mnist";

using Row = std::map<std::string, std::string>;

/// The rows of metrics.csv, without empty cells.
std::vector<Row> read_csv(const std::string& path) {
  const auto split = [](const std::string& line) {
    std::vector<std::string> cells;
    std::stringstream stream(line);
    for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
    return cells;
  };
  std::stringstream lines(read_text(path));
  std::string line;
  std::getline(lines, line);
  const auto columns = split(line);
  std::vector<Row> rows;
  while (std::getline(lines, line)) {
    Row& row = rows.emplace_back();
    const auto cells = split(line);
    for (size_t i = 0; i < cells.size(); ++i)
      if (!cells[i].empty()) row[columns.at(i)] = cells[i];
  }
  return rows;
}

/// 100 training images (of which 36 are for validation) and 40 test images.
class FashionMnistProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kProgram)) GTEST_SKIP() << "there is no " << kProgram << "; hint: build the examples";
    testing::write_tiny_fashion(folder_.path("data"), 100, 40);
  }

  /// The words of a small run in this test's own folder. Later words win.
  std::vector<std::string> words(const std::string& command, const std::vector<std::string>& more = {},
                                 const std::string& root = "runs", const std::string& config = kMlp) const {
    std::vector<std::string> all = {kProgram,
                                    command,
                                    "--config",
                                    config,
                                    "--trainer.accelerator=cpu",
                                    "--trainer.default_root_dir=" + folder_.path(root),
                                    "--trainer.log_every_n_steps=1",
                                    "--data.root=" + folder_.path("data"),
                                    "--data.val_size=36",
                                    "--data.batch_size=16",
                                    "--model.lr=0.01"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  ProgramResult run(const std::string& command, const std::vector<std::string>& more = {},
                    const std::string& root = "runs", const std::string& config = kMlp) const {
    return testing::run_program(words(command, more, root, config), options_);
  }

  std::string version(int64_t number, const std::string& name = "", const std::string& root = "runs") const {
    return folder_.path(root + "/version_" + std::to_string(number) + (name.empty() ? "" : "/" + name));
  }
  std::set<std::string> list(const std::string& path) const {
    std::set<std::string> names;
    if (!fs::exists(path)) return names;
    for (const auto& entry : fs::directory_iterator(path)) names.insert(entry.path().filename().string());
    return names;
  }
  ProgramResult verify(const std::string& checkpoint) const {
    return testing::run_program({kCheckpointTool, "verify", checkpoint});
  }
  /// What levin-checkpoint shows as the cursor's global_step.
  int64_t global_step(const std::string& checkpoint) const {
    const std::string text = testing::run_program({kCheckpointTool, "show", checkpoint}).out;
    const size_t place = text.find("global_step = ");
    EXPECT_NE(place, std::string::npos) << text;
    return place == std::string::npos ? -1 : std::atoll(text.c_str() + place + 14);
  }

  testing::TemporaryFolder folder_;
  const testing::ProgramOptions options_{.environment = {{"OMP_NUM_THREADS", "1"}}};
};

using FashionMnistFiles = FashionMnistProgram;

TEST_F(FashionMnistFiles, FitThenEverythingElse) {
  const ProgramResult fit = run("fit");
  ASSERT_EQ(fit.status, 0) << fit.err;
  EXPECT_NE(fit.out.find("val_acc "), std::string::npos) << fit.out;
  EXPECT_NE(fit.out.find("best checkpoint   " + version(0, "checkpoints/epoch=")), std::string::npos) << fit.out;
  EXPECT_NE(fit.out.find("last checkpoint   " + version(0, "checkpoints/last")), std::string::npos) << fit.out;
  EXPECT_NE(fit.out.find("logs              " + version(0)), std::string::npos) << fit.out;

  // One run, one folder.
  EXPECT_EQ(list(folder_.path("runs")), (std::set<std::string>{"version_0"}));
  for (const char* name : {"config.yaml", "hparams.yaml", "metrics.csv", "checkpoints/last/model.safetensors"})
    EXPECT_TRUE(fs::exists(version(0, name))) << name;
  const auto names = list(version(0));
  EXPECT_TRUE(std::any_of(names.begin(), names.end(),
                          [](const std::string& name) { return name.starts_with("events.out.tfevents."); }));
  // save_top_k: 2, beside `last`.
  EXPECT_EQ(list(version(0, "checkpoints")).size(), 3u);
  EXPECT_TRUE(list(version(0, "checkpoints")).contains("last"));

  std::string header = read_text(version(0, "metrics.csv"));
  header.resize(header.find('\n'));
  EXPECT_EQ(header, "epoch,step,train_loss,val_loss,val_acc");
  const auto rows = read_csv(version(0, "metrics.csv"));
  ASSERT_EQ(rows.size(), 10u);  // 2 epochs of 4 steps and a validation
  EXPECT_EQ(rows.front().at("step"), "1");
  EXPECT_EQ(rows.back().at("epoch"), "1");
  EXPECT_EQ(rows.back().at("step"), "8");
  EXPECT_LT(std::stod(rows[8].at("train_loss")), std::stod(rows[0].at("train_loss")));
  EXPECT_EQ(rows.back().count("val_acc"), 1u);

  // The weights of the checkpoint give what they gave in fit.
  const ProgramResult validate = run("validate", {"--ckpt", "last"});
  ASSERT_EQ(validate.status, 0) << validate.err;
  EXPECT_NEAR(value_of("val_loss", validate.out), std::stod(rows.back().at("val_loss")), 1e-4);
  EXPECT_NEAR(value_of("val_acc", validate.out), std::stod(rows.back().at("val_acc")), 1e-4);

  const ProgramResult test = run("test", {"--ckpt=best"});
  ASSERT_EQ(test.status, 0) << test.err;
  EXPECT_NE(test.out.find("test_acc"), std::string::npos) << test.out;
  EXPECT_NE(test.out.find("test_loss"), std::string::npos) << test.out;

  const ProgramResult predict = run("predict", {"--ckpt", version(0, "checkpoints/last")});
  ASSERT_EQ(predict.status, 0) << predict.err;
  EXPECT_NE(predict.out.find("predictions.safetensors  class [40]"), std::string::npos) << predict.out;
}

TEST_F(FashionMnistFiles, EachFitHasAFolderAndCheckpointsAreFound) {
  ASSERT_EQ(run("fit", {"--trainer.max_epochs=1", "--ckpt=auto"}).status, 0);
  const ProgramResult fresh = run("fit", {"--trainer.max_epochs=1"});
  ASSERT_EQ(fresh.status, 0) << fresh.err;
  EXPECT_EQ(global_step(version(1, "checkpoints/last")), 4);

  const ProgramResult automatic = run("fit", {"--trainer.max_epochs=2", "--ckpt", "auto"});
  ASSERT_EQ(automatic.status, 0) << automatic.err;
  EXPECT_NE(automatic.err.find("loaded the checkpoint " + version(1, "checkpoints/last")), std::string::npos)
      << automatic.err;
  EXPECT_EQ(global_step(version(2, "checkpoints/last")), 8);

  const ProgramResult best = run("fit", {"--trainer.max_epochs=3", "--ckpt", "best"});
  ASSERT_EQ(best.status, 0) << best.err;
  EXPECT_EQ(global_step(version(3, "checkpoints/last")), 12);

  const ProgramResult path = run("fit", {"--trainer.max_epochs=2", "--ckpt", version(0, "checkpoints/last")});
  ASSERT_EQ(path.status, 0) << path.err;
  EXPECT_EQ(global_step(version(4, "checkpoints/last")), 8);
}

TEST_F(FashionMnistFiles, CnnAndOneBatchOfEverything) {
  const ProgramResult fit = run("fit", {"--trainer.max_epochs=1", "--model.channels=4"}, "runs", kCnn);
  ASSERT_EQ(fit.status, 0) << fit.err;
  const ProgramResult dry = run("fit", {"--trainer.fast_dev_run", "--model.channels=4"}, "dry", kCnn);
  ASSERT_EQ(dry.status, 0) << dry.err;
  EXPECT_FALSE(fs::exists(folder_.path("dry"))) << "fast_dev_run writes nothing";
}

TEST(FashionMnistReal, OneEpochOfTheExampleIsGood) {
  if (!fs::exists(kProgram)) GTEST_SKIP() << "there is no " << kProgram << "; hint: build the examples";
  if (!fs::exists(kRealData))
    GTEST_SKIP() << "there is no " << kRealData << "; hint: apt-get install dataset-fashion-mnist";
  const testing::TemporaryFolder folder;
  const ProgramResult fit =
      testing::run_program({kProgram, "fit", "--config", kMlp, "--trainer.max_epochs=1", "--trainer.accelerator=cpu",
                            "--trainer.default_root_dir=" + folder.path()});
  ASSERT_EQ(fit.status, 0) << fit.err;
  const auto rows = read_csv(folder.path("version_0/metrics.csv"));
  const auto validated =
      std::find_if(rows.rbegin(), rows.rend(), [](const Row& row) { return row.contains("val_acc"); });
  ASSERT_NE(validated, rows.rend());
  EXPECT_GT(std::stod(validated->at("val_acc")), 0.80);
}

// ---- Ends that nobody planned.

class FashionMnistEnds : public FashionMnistProgram {
 protected:
  /// Epochs of 64 steps with one image each, so many that only a hang meets their end.
  static constexpr int64_t kEndless = 100'000;
  std::vector<std::string> long_run(int64_t epochs, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"--data.batch_size=1", "--trainer.max_epochs=" + std::to_string(epochs),
                                    "--model.hidden=256", "--trainer.limit_val_batches=2",
                                    "--trainer.enable_progress_bar=false"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  /// Starts a long run and sends a signal once the first checkpoint is there.
  ProgramResult interrupt(int signal, const std::string& root, int64_t epochs) const {
    RunningProgram program(words("fit", long_run(epochs), root), options_);
    EXPECT_TRUE(program.wait_until([&] { return !list(version(0, "checkpoints", root)).empty(); })) << program.err();
    program.send(signal);
    return program.wait();
  }
};

TEST_F(FashionMnistEnds, InterruptSavesAndResumeIsEqualToTheBit) {
  // Weights depend on the number of epochs: more of them where all were done before the signal came.
  int64_t epochs = 40;
  ProgramResult interrupted = interrupt(SIGINT, "parts", epochs);
  while (interrupted.status == 0 && epochs < kEndless) {
    fs::remove_all(folder_.path("parts"));
    interrupted = interrupt(SIGINT, "parts", epochs *= 4);
  }
  RunningProgram straight(words("fit", long_run(epochs), "straight"), options_);
  EXPECT_EQ(interrupted.status, 130) << interrupted.err;
  EXPECT_NE(interrupted.err.find("ending after the present step and saving"), std::string::npos) << interrupted.err;
  EXPECT_NE(interrupted.err.find("--ckpt last goes on from here"), std::string::npos) << interrupted.err;
  // The closing hooks and the program's last lines come as ever.
  EXPECT_NE(interrupted.out.find("last checkpoint   " + version(0, "checkpoints/last", "parts")), std::string::npos)
      << interrupted.out;
  const int64_t stopped = global_step(version(0, "checkpoints/last", "parts"));
  ASSERT_GT(stopped, 0);
  ASSERT_LT(stopped, epochs * 64);
  const auto first_rows = read_csv(version(0, "metrics.csv", "parts"));
  EXPECT_EQ(first_rows.back().at("step"), std::to_string(stopped));

  const ProgramResult resumed = run("fit", long_run(epochs, {"--ckpt", "last"}), "parts");
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  const ProgramResult whole = straight.wait();
  ASSERT_EQ(whole.status, 0) << whole.err;

  const std::string of_straight = version(0, "checkpoints/last", "straight");
  const std::string of_parts = version(1, "checkpoints/last", "parts");
  EXPECT_EQ(global_step(of_straight), epochs * 64);
  const std::string weights = read_text(of_straight + "/model.safetensors");
  ASSERT_FALSE(weights.empty());
  EXPECT_TRUE(weights == read_text(of_parts + "/model.safetensors"));
  EXPECT_TRUE(read_text(of_straight + "/optimizer.safetensors") == read_text(of_parts + "/optimizer.safetensors"));

  // What the two parts logged is what the whole run logged.
  auto rows = first_rows;
  const auto more_rows = read_csv(version(1, "metrics.csv", "parts"));
  rows.insert(rows.end(), more_rows.begin(), more_rows.end());
  EXPECT_TRUE(rows == read_csv(version(0, "metrics.csv", "straight")));
}

TEST_F(FashionMnistEnds, TerminateSavesToo) {
  const ProgramResult ended = interrupt(SIGTERM, "runs", kEndless);
  EXPECT_EQ(ended.status, 143) << ended.err;
  EXPECT_EQ(verify(version(0, "checkpoints/last")).status, 0);
  EXPECT_LT(global_step(version(0, "checkpoints/last")), kEndless * 64);
}

TEST_F(FashionMnistEnds, SecondInterruptEndsAtOnce) {
  // A step of this model takes seconds.
  const std::vector<std::string> slow = {"--model.channels=384", "--trainer.num_sanity_val_steps=0",
                                         "--data.batch_size=64", "--trainer.enable_progress_bar=false",
                                         "--data.augment=false"};
  RunningProgram program(words("fit", slow, "runs", kCnn), options_);
  ASSERT_TRUE(program.wait_until([&] { return fs::exists(version(0, "hparams.yaml")); })) << program.err();
  program.send(SIGINT);
  ASSERT_TRUE(program.wait_until([&] { return program.err().find("once more") != std::string::npos; }));
  program.send(SIGINT);
  const ProgramResult ended = program.wait();
  EXPECT_EQ(ended.signal, SIGINT) << ended.status << ended.err;
  EXPECT_TRUE(list(version(0, "checkpoints")).empty());
}

TEST_F(FashionMnistEnds, KilledWhileSavingLeavesAGoodCheckpoint) {
  const auto saving =
      long_run(kEndless, {"--trainer.callbacks=[{model_checkpoint: {every_n_train_steps: 1, save_last: true}}]"});
  for (const int milliseconds : {0, 13, 57}) {
    const std::string root = "runs" + std::to_string(milliseconds);
    {
      RunningProgram program(words("fit", saving, root), options_);
      ASSERT_TRUE(program.wait_until([&] { return fs::exists(version(0, "checkpoints/last", root)); }))
          << program.err();
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      program.send(SIGKILL);
      EXPECT_EQ(program.wait().signal, SIGKILL);
    }
    // Whatever has a checkpoint's name is whole.
    for (const auto& name : list(version(0, "checkpoints", root))) {
      if (name.starts_with(".")) continue;
      const ProgramResult check = verify(version(0, "checkpoints/" + name, root));
      EXPECT_EQ(check.status, 0) << name << "\n" << check.out << check.err;
    }
    const ProgramResult resumed = run("fit", long_run(1, {"--ckpt=last"}), root);
    EXPECT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_NE(resumed.err.find("loaded the checkpoint " + version(0, "checkpoints/", root)), std::string::npos)
        << resumed.err;
    EXPECT_EQ(resumed.err.find("warning: falling back"), std::string::npos) << resumed.err;
  }
}

}  // namespace
}  // namespace levin
