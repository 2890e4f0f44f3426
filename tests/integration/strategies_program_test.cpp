// The example program under every strategy, by one line of configuration: real processes, real signals.

#include "../support/eventually.h"
#include "../support/run_program.h"
#include "printed_table.h"
#include "tests/support/tree.h"
#include "tiny_fashion.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <ios>
#include <sstream>
#include <string>
#include <vector>

namespace levin {
namespace {

namespace fs = std::filesystem;
using testing::ProgramResult;
using testing::RunningProgram;

const std::string kTrainingProgram = testing::build_path("bin/fashion_mnist");
const std::string kMlpConfiguration = testing::source_path("examples/fashion_mnist/mlp.yaml");

/// Validation is left out of long runs, and with it the metric that mlp.yaml ranks checkpoints by.
constexpr const char* kNoValidation = "--trainer.limit_val_batches=0";
constexpr const char* kNoMonitor = "--trainer.callbacks=[{model_checkpoint: {save_last: true, every_n_epochs: 1000}}]";

/// Process ids of programs whose command line holds a text.
std::vector<pid_t> processes_with(const std::string& text) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::string command;
    try {
      command = testing::read_text(entry.path().string() + "/cmdline");
    } catch (const std::ios_base::failure&) {
      continue;  // it ended while it was read
    }
    if (command.find(text) != std::string::npos) found.push_back(static_cast<pid_t>(std::stol(name)));
  }
  return found;
}

class StrategiesProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kTrainingProgram))
      GTEST_SKIP() << "there is no " << kTrainingProgram << "; hint: build the examples";
    testing::write_tiny_fashion(folder_.path("data"), 200, 40);
  }

  std::vector<std::string> words(const std::string& command, const std::string& strategy, int devices,
                                 const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {kTrainingProgram,
                                    command,
                                    "--config",
                                    kMlpConfiguration,
                                    "--data.root=" + folder_.path("data"),
                                    "--data.val_size=72",
                                    "--data.global_batch_size=16",
                                    "--data.num_workers=0",
                                    "--trainer.max_epochs=2",
                                    "--trainer.accelerator=cpu",
                                    "--trainer.strategy=" + strategy,
                                    "--trainer.devices=" + std::to_string(devices),
                                    "--trainer.default_root_dir=" + folder_.path("runs-" + strategy)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  /// Goes on for ever, in a folder of its own.
  std::vector<std::string> long_run(const std::string& root) const {
    return {"--trainer.max_epochs=100000", "--trainer.log_every_n_steps=1", kNoValidation, kNoMonitor,
            "--trainer.default_root_dir=" + folder_.path(root)};
  }
  bool is_training(const std::string& root) const {
    const std::string metrics = folder_.path(root + "/version_0/metrics.csv");
    return fs::exists(metrics) && fs::file_size(metrics) > 0;
  }

  testing::TemporaryFolder folder_;
};

TEST_F(StrategiesProgram, OneLineChangesTheStrategyAndNotTheResult) {
  const ProgramResult one = testing::run_program(words("fit", "single_device", 1));
  ASSERT_EQ(one.status, 0) << one.err;
  for (const char* strategy : {"dp", "ddp", "ddp_spawn", "ddp_threads", "horovod"}) {
    std::vector<std::string> more;
    if (std::string(strategy) == "horovod") more = {"--trainer.strategy.scale_lr=none"};
    const ProgramResult several = testing::run_program(words("fit", strategy, 2, more));
    ASSERT_EQ(several.status, 0) << strategy << "\n" << several.out << several.err;
    for (const char* name : {"val_loss", "val_acc"})
      EXPECT_NEAR(value_of(name, several.out), value_of(name, one.out), 0.02) << strategy << " " << name;
    EXPECT_EQ(several.out.find("best checkpoint"), several.out.rfind("best checkpoint"))
        << strategy << ": only rank 0 reports\n"
        << several.out;
  }
}

TEST_F(StrategiesProgram, AKilledRankEndsAllWithItsNameAndNoProcessIsLeft) {
  const std::string mark = folder_.path("data");
  for (const bool kill_first : {false, true}) {
    RunningProgram run(words("fit", "ddp", 2, long_run(kill_first ? "first" : "second")));
    ASSERT_TRUE(run.wait_until([&] { return processes_with(mark).size() == 2; })) << run.err();
    ASSERT_TRUE(run.wait_until([&] { return is_training(kill_first ? "first" : "second"); })) << run.err();
    for (const pid_t process : processes_with(mark))
      if ((process == run.process()) == kill_first) kill(process, SIGKILL);
    const ProgramResult result = run.wait();
    if (kill_first) {
      EXPECT_EQ(result.signal, SIGKILL);
    } else {
      EXPECT_NE(result.status, 0);
      EXPECT_NE(result.err.find("rank 1"), std::string::npos) << result.err;
    }
    EXPECT_TRUE(testing::eventually([&] { return processes_with(mark).empty(); }));
  }
}

TEST_F(StrategiesProgram, CtrlCEndsAllRanksCleanlyAndTheRunGoesOn) {
  RunningProgram run(words("fit", "ddp", 2, long_run("runs")));
  ASSERT_TRUE(run.wait_until([&] { return is_training("runs"); })) << run.err();
  kill(run.process(), SIGINT);
  const ProgramResult result = run.wait();
  EXPECT_EQ(result.status, 128 + SIGINT) << result.err;
  const ProgramResult on =
      testing::run_program(words("fit", "ddp", 2,
                                 {"--ckpt", "last", "--trainer.max_steps=1000000", "--trainer.max_time=00:00:00:01",
                                  kNoValidation, kNoMonitor, "--trainer.default_root_dir=" + folder_.path("runs")}));
  EXPECT_EQ(on.status, 0) << on.err;
}

TEST_F(StrategiesProgram, MistakesAreSaidOnce) {
  const ProgramResult misspelt = testing::run_program(words("fit", "dpp", 2));
  EXPECT_EQ(misspelt.status, 2);
  EXPECT_NE(misspelt.err.find("did you mean"), std::string::npos) << misspelt.err;

  const ProgramResult indivisible = testing::run_program(words("fit", "ddp_threads", 3));
  EXPECT_NE(indivisible.status, 0);
  EXPECT_NE(indivisible.err.find("global_batch_size is 16, which 3 ranks cannot share"), std::string::npos)
      << indivisible.err;

  const ProgramResult several = testing::run_program(words("fit", "single_device", 2));
  EXPECT_EQ(several.status, 2);
  EXPECT_NE(several.err.find("2 devices"), std::string::npos) << several.err;

  const ProgramResult nodes = testing::run_program(words("fit", "ddp", 2, {"--trainer.num_nodes=2"}));
  EXPECT_EQ(nodes.status, 2);
  EXPECT_NE(nodes.err.find("no launcher has started ranks"), std::string::npos) << nodes.err;
}

}  // namespace
}  // namespace levin
