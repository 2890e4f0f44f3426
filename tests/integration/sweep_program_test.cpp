// The command sweep as a user runs it: real runs, killed and continued.

#include "../support/run_program.h"
#include "tests/support/tree.h"
#include "tiny_fashion.h"

#include <gmock/gmock-matchers.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace levin {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::read_text;
using testing::RunningProgram;

const std::string kSweepProgram = testing::build_path("bin/fashion_mnist");
const std::string kSweptConfig = testing::source_path("examples/fashion_mnist/mlp.yaml");

using Row = std::map<std::string, std::string>;

/// The rows of a sweep.csv whose cells have no commas.
std::vector<Row> rows_of(const std::string& csv) {
  const auto split = [](const std::string& line) {
    std::vector<std::string> cells;
    std::stringstream stream(line + ",");
    for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
    return cells;
  };
  std::stringstream lines(csv);
  std::string line;
  std::getline(lines, line);
  const auto columns = split(line);
  std::vector<Row> rows;
  while (std::getline(lines, line)) {
    const auto cells = split(line);
    Row& row = rows.emplace_back();
    for (size_t i = 0; i < std::min(cells.size(), columns.size()); ++i) row[columns[i]] = cells[i];
  }
  return rows;
}

class SweepProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kSweepProgram)) GTEST_SKIP() << "there is no " << kSweepProgram << "; hint: build the examples";
    testing::write_tiny_fashion(folder_.path("data"), 100, 40);
  }

  /// The words of a small program in this test's own folder.
  std::vector<std::string> words(const std::string& command, const std::vector<std::string>& more) const {
    std::vector<std::string> all = {kSweepProgram,
                                    command,
                                    "--config",
                                    kSweptConfig,
                                    "--trainer.accelerator=cpu",
                                    "--trainer.default_root_dir=" + folder_.path("runs"),
                                    "--trainer.log_every_n_steps=1",
                                    "--trainer.logger=csv",
                                    "--data.root=" + folder_.path("data"),
                                    "--data.num_workers=0",
                                    "--data.val_size=36",
                                    "--data.batch_size=16"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<std::string> sweep_words(const std::string& name, const std::vector<std::string>& more) const {
    auto all = words("sweep", {"--sweep.name=" + name});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  ProgramResult sweep(const std::string& name, const std::vector<std::string>& more) const {
    return testing::run_program(sweep_words(name, more), options_);
  }

  std::string path(const std::string& sweep, const std::string& name) const {
    return folder_.path("runs/sweeps/" + sweep + "/" + name);
  }
  std::vector<Row> table(const std::string& sweep) const { return rows_of(read_text(path(sweep, "sweep.csv"))); }
  /// The table without times, which are never the same.
  std::vector<Row> results(const std::string& sweep) const {
    auto rows = table(sweep);
    for (Row& row : rows) row.erase("seconds");
    return rows;
  }
  std::string weights(const std::string& run) const {
    const std::string text = read_text(run + "/checkpoints/last/model.safetensors");
    EXPECT_FALSE(text.empty()) << run;
    return text;
  }

  testing::TemporaryFolder folder_;
  const testing::ProgramOptions options_{.environment = {{"OMP_NUM_THREADS", "1"}}};
};

using SweepRuns = SweepProgram;

TEST_F(SweepRuns, EndInATableAndAreOrdinaryRunFolders) {
  const ProgramResult result = sweep(
      "grid", {"--sweep.grid={model.lr: [0.01, 0.001], seed: [1, 2]}", "--sweep.parallel=2", "--trainer.max_epochs=1"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("\\*  000[0-3]  finished"));
  EXPECT_THAT(result.out, ContainsRegex("best    000[0-3]  val_loss [0-9.]+  model.lr=0.01, seed="));
  const auto rows = table("grid");
  ASSERT_EQ(rows.size(), 4u);
  for (const Row& row : rows) {
    EXPECT_EQ(row.at("status"), "finished");
    EXPECT_FALSE(row.at("val_loss").empty());
    EXPECT_GT(std::stod(row.at("seconds")), 0);
    for (const char* name : {"metrics.csv", "config.yaml", "output.txt", "checkpoints/last/model.safetensors"})
      EXPECT_TRUE(fs::exists(path("grid", row.at("run") + "/" + name))) << name;
  }
  EXPECT_EQ(rows[2].at("model.lr"), "0.001");
  EXPECT_EQ(rows[2].at("seed"), "1");
  EXPECT_THAT(read_text(path("grid", "sweep.yaml")), HasSubstr("options:\n  - model.lr\n  - seed\n"));

  // What the same configuration gives without a sweep.
  const ProgramResult fit =
      testing::run_program(words("fit", {"--model.lr=0.001", "--seed=2", "--trainer.max_epochs=1"}), options_);
  ASSERT_EQ(fit.status, 0) << fit.err;
  EXPECT_EQ(weights(path("grid", "0003")), weights(folder_.path("runs/version_0")));

  // Started again, it has nothing left to do.
  const std::string before = read_text(path("grid", "0000/output.txt"));
  const ProgramResult again =
      sweep("grid", {"--sweep.grid={model.lr: [0.01, 0.001], seed: [1, 2]}", "--trainer.max_epochs=1"});
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(again.out, result.out);
  EXPECT_EQ(read_text(path("grid", "0000/output.txt")), before);
}

TEST_F(SweepRuns, VariedOptionsAreAboveVariables) {
  auto options = options_;
  options.environment["LEVIN_MODEL__LR"] = "0.05";
  const ProgramResult result = testing::run_program(
      sweep_words("variables", {"--sweep.grid={model.lr: [0.01, 0.001]}", "--trainer.max_epochs=1"}), options);
  ASSERT_EQ(result.status, 0) << result.err;
  for (const auto& [run, rate] : {std::pair("0000", "0.01"), std::pair("0001", "0.001")}) {
    SCOPED_TRACE(rate);
    const ProgramResult fit =
        testing::run_program(words("fit", {std::string("--model.lr=") + rate, "--trainer.max_epochs=1"}), options_);
    ASSERT_EQ(fit.status, 0) << fit.err;
    EXPECT_EQ(weights(path("variables", run)), weights(folder_.path(std::string("runs/version_") + run[3])));
  }
}

TEST_F(SweepRuns, OneThatFailsIsReportedAndTheOthersGoOn) {
  const std::vector<std::string> more = {"--sweep.grid={data.val_size: [36, 5000]}", "--trainer.max_epochs=1"};
  const ProgramResult result = sweep("failing", more);
  EXPECT_EQ(result.status, 1) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("failed  0001  .*val_size.*; hint: .*/0001/output.txt"));
  EXPECT_EQ(table("failing").at(0).at("status"), "finished");
  EXPECT_EQ(table("failing").at(1).at("status"), "failed");
}

TEST_F(SweepRuns, DevicesShareAGlobalBatchAndTheRateFollowsIt) {
  const ProgramResult result =
      sweep("devices", {"--sweep.grid={trainer.devices: [1, 2]}", "--sweep.global_batch_size=32",
                        "--sweep.learning_rate_scaling={batch_size: 16}", "--trainer.strategy=ddp",
                        "--trainer.max_epochs=1", "--model.lr=0.002"});
  ASSERT_EQ(result.status, 0) << result.err << read_text(path("devices", "0001/output.txt"));
  const auto rows = table("devices");
  EXPECT_EQ(rows[0].at("data.batch_size"), "32");
  EXPECT_EQ(rows[1].at("data.batch_size"), "16");
  for (const Row& row : rows) EXPECT_EQ(row.at("model.lr"), "0.004");
  // Two devices with half of each batch compute what one computes, but for the order of sums.
  EXPECT_NEAR(std::stod(rows[0].at("val_loss")), std::stod(rows[1].at("val_loss")), 1e-4);
}

TEST_F(SweepRuns, GoThroughTheCommandThatIsPutBeforeTheirs) {
  const std::string script = folder_.path("dispatch.sh");
  testing::write_text(script, "#!/bin/sh\necho \"$@\" >> " + folder_.path("dispatched") + "\nexec \"$@\"\n");
  const ProgramResult result = sweep(
      "prefix", {"--sweep.grid={seed: [1, 2]}", "--sweep.command=[sh, " + script + "]", "--trainer.max_epochs=1"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(read_text(folder_.path("dispatched")),
              ContainsRegex("fashion_mnist fit --config .*/prefix/0000/config.yaml --ckpt auto\n"));
  const ProgramResult missing = sweep("missing", {"--sweep.grid={seed: [1, 2]}", "--sweep.command=[no-such-program]"});
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.err, HasSubstr("[sweep] cannot start no-such-program"));
}

TEST_F(SweepRuns, HaveTheTablesLoggerWhicheverLoggersVary) {
  const ProgramResult result = sweep(
      "loggers", {"--sweep.list=[{trainer.logger: [tensorboard]}, {trainer.logger: [csv]}]", "--trainer.max_epochs=1"});
  ASSERT_EQ(result.status, 0) << result.err;
  const auto rows = table("loggers");
  EXPECT_FALSE(rows.at(0).at("val_loss").empty());
  EXPECT_EQ(rows.at(0).at("val_loss"), rows.at(1).at("val_loss"));
}

using SweepEndings = SweepProgram;

TEST_F(SweepEndings, KilledBeforeTheTableSaysThatARunHasEndedByItselfItStaysEnded) {
  const std::vector<std::string> more = {"--sweep.grid={model.lr: [0.01]}", "--trainer.max_epochs=8",
                                         "--trainer.callbacks.early_stopping={monitor: val_acc, mode: max, "
                                         "patience: 1, min_delta: 0.9}"};
  ASSERT_EQ(sweep("ended", more).status, 0);
  const auto before = results("ended");
  const std::string metrics = read_text(path("ended", "0000/metrics.csv"));
  const std::string last = weights(path("ended", "0000"));
  std::string csv = read_text(path("ended", "sweep.csv"));
  csv.replace(csv.find("finished"), std::string("finished").size(), "running");
  testing::write_text(path("ended", "sweep.csv"), csv);
  ASSERT_EQ(sweep("ended", more).status, 0);
  EXPECT_EQ(results("ended"), before);
  EXPECT_EQ(read_text(path("ended", "0000/metrics.csv")), metrics);
  EXPECT_EQ(weights(path("ended", "0000")), last);
}

TEST_F(SweepEndings, KilledAtRandomAndStartedAgainItGivesTheSameTableAndWeights) {
  const std::vector<std::string> more = {"--sweep.grid={model.lr: [0.01, 0.003, 0.001]}", "--sweep.parallel=2",
                                         "--trainer.max_epochs=3"};
  const auto began = std::chrono::steady_clock::now();
  ASSERT_EQ(sweep("undisturbed", more).status, 0);
  const auto whole = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();

  std::mt19937 chance(std::random_device{}());
  int kills = 0;
  // Sooner in another folder where the sweep was always done before.
  for (int attempt = 0; attempt < 10 && kills == 0; ++attempt) {
    const std::string name = "killed" + std::to_string(attempt);
    for (int round = 0; round < 3; ++round) {
      RunningProgram program(sweep_words(name, more), options_);
      const double moment = whole * std::uniform_real_distribution<double>(0.1, 0.9)(chance) / 1.5;
      std::this_thread::sleep_for(std::chrono::duration<double>(std::ldexp(moment, -2 * attempt)));
      program.send(SIGKILL);
      if (program.wait().signal == SIGKILL) ++kills;
    }
    const ProgramResult last = sweep(name, more);
    ASSERT_EQ(last.status, 0) << last.err;
    EXPECT_EQ(results(name), results("undisturbed")) << "after " << kills << " kills";
    for (const char* run : {"0000", "0001", "0002"})
      EXPECT_EQ(weights(path(name, run)), weights(path("undisturbed", run))) << run;
  }
  EXPECT_GT(kills, 0);
}

TEST_F(SweepEndings, CtrlCSavesTheRunsAndEndsThem) {
  const std::vector<std::string> more = {"--sweep.grid={seed: [1, 2, 3]}", "--sweep.parallel=2",
                                         "--trainer.max_epochs=100000"};
  RunningProgram program(sweep_words("interrupted", more), options_);
  ASSERT_TRUE(program.wait_until([&] {
    return fs::exists(path("interrupted", "0000/checkpoints/last/manifest.json")) &&
           fs::exists(path("interrupted", "0001/checkpoints/last/manifest.json"));
  }));
  program.send(SIGINT);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.status, 130) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the same command goes on from here"));
  EXPECT_EQ(table("interrupted").at(0).at("status"), "waiting");
  EXPECT_THAT(read_text(path("interrupted", "0000/output.txt")), HasSubstr("--ckpt last goes on from here"));
}

TEST_F(SweepEndings, ASecondSweepInTheFolderIsRefusedAndADifferentOneToo) {
  const std::vector<std::string> more = {"--sweep.grid={seed: [1]}", "--trainer.max_epochs=100000"};
  RunningProgram first(sweep_words("busy", more), options_);
  ASSERT_TRUE(first.wait_until([&] { return fs::exists(path("busy", "sweep.csv")); }));
  const ProgramResult second = sweep("busy", more);
  EXPECT_EQ(second.status, 1);
  EXPECT_THAT(second.err, HasSubstr("is in use by the sweep of process " + std::to_string(first.process())));
  first.send(SIGINT);
  first.wait();
  const ProgramResult other = sweep("busy", {"--sweep.grid={seed: [1]}", "--trainer.max_epochs=5"});
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.err, HasSubstr("configuration.trainer.max_epochs: 100000 there, 5 here"));
}

TEST_F(SweepEndings, MistakesAreRefusedBeforeAnythingIsMade) {
  const auto error_of = [&](const std::vector<std::string>& more) {
    const ProgramResult result = sweep("mistake", more);
    EXPECT_EQ(result.status, 2) << result.err;
    EXPECT_FALSE(fs::exists(path("mistake", ""))) << result.err;
    return result.err;
  };
  EXPECT_THAT(error_of({"--sweep.grid={model.lrr: [1, 2]}"}), HasSubstr("did you mean 'lr'?"));
  EXPECT_THAT(error_of({"--sweep.grid={model.lr: [0.1, many]}"}), HasSubstr("(run 1 of the sweep: model.lr=many)"));
  EXPECT_THAT(error_of({"--sweep.grid={}"}), HasSubstr("nothing varies"));
  EXPECT_THAT(error_of({"--sweep.gridd={}"}), HasSubstr("did you mean 'grid'?"));
  EXPECT_THAT(error_of({"--sweep.grid={trainer.devices: [64]}", "--trainer.accelerator=gpu"}), HasSubstr("64"));
  EXPECT_THAT(error_of({"--sweep.grid={seed: [1]}", "--sweep.executor=slurmm"}), HasSubstr("did you mean 'slurm'?"));
  EXPECT_THAT(error_of({"--sweep.grid={seed: [1]}", "--sweep.successive_halving={min_epochs: 1}",
                        "--trainer.max_epochs=4", "--trainer.min_steps=6"}),
              HasSubstr("trainer.min_steps does not work with sweep.successive_halving"));
  const std::string shares = "model_checkpoint.upload_to: runs 0000 and 0001 would share s3://b/a and resume from each";
  EXPECT_THAT(
      error_of({"--sweep.grid={seed: [1, 2]}", "--trainer.callbacks=[{model_checkpoint: {upload_to: s3://b/a}}]"}),
      HasSubstr(shares));
  EXPECT_THAT(error_of({"--sweep.grid={trainer.callbacks.model_checkpoint.upload_to: [s3://b/a, s3://b/a/]}",
                        "--trainer.callbacks=[model_checkpoint]"}),
              HasSubstr(shares));
}

using SweepHalving = SweepProgram;

TEST_F(SweepHalving, EndsBadRunsEarlyAndThoseThatGoOnAreAsIfTheyHadNeverPaused) {
  const std::vector<std::string> more = {"--sweep.grid={model.lr: [0.00001, 0.01, 0.0001, 0.001]}",
                                         "--sweep.successive_halving={min_epochs: 1, reduction_factor: 2}",
                                         "--trainer.max_epochs=4"};
  const ProgramResult result = sweep("halving", more);
  ASSERT_EQ(result.status, 0) << result.err;
  const auto rows = table("halving");
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].at("status"), "stopped_early");
  EXPECT_EQ(rows[0].at("rung"), "0");
  EXPECT_EQ(rows[1].at("status"), "finished");
  EXPECT_EQ(rows[1].at("rung"), "2");
  EXPECT_EQ(rows[3].at("status"), "stopped_early");

  const ProgramResult fit = testing::run_program(words("fit", {"--model.lr=0.01", "--trainer.max_epochs=4"}), options_);
  ASSERT_EQ(fit.status, 0) << fit.err;
  EXPECT_EQ(weights(path("halving", "0001")), weights(folder_.path("runs/version_0")));
  EXPECT_EQ(read_text(path("halving", "0001/checkpoints/last/optimizer.safetensors")),
            read_text(folder_.path("runs/version_0/checkpoints/last/optimizer.safetensors")));

  // With one run at a time decisions do not depend on times: killed and started again it decides alike.
  {
    RunningProgram program(sweep_words("again", more), options_);
    ASSERT_TRUE(program.wait_until([&] { return fs::exists(path("again", "0002/metrics.csv")); }));
    program.send(SIGKILL);
    program.wait();
  }
  ASSERT_EQ(sweep("again", more).status, 0);
  EXPECT_EQ(results("again"), results("halving"));
}

/// `min_delta` is more than there can be: the second look ends a run.
const std::string kEndsEarly =
    "--trainer.callbacks.early_stopping={monitor: val_acc, mode: max, patience: 1, min_delta: 0.9}";

TEST_F(SweepHalving, RunsThatHaveEndedByThemselvesGoOnAsTheyAre) {
  const ProgramResult result =
      sweep("ended", {"--sweep.grid={model.lr: [0.01, 0.0001]}", "--trainer.max_epochs=8",
                      "--sweep.successive_halving={min_epochs: 3, reduction_factor: 2}", kEndsEarly});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(table("ended").at(0).at("status"), "finished");
  EXPECT_EQ(table("ended").at(0).at("rung"), "2");
  const ProgramResult fit =
      testing::run_program(words("fit", {"--model.lr=0.01", "--trainer.max_epochs=8", kEndsEarly}), options_);
  ASSERT_EQ(fit.status, 0) << fit.err;
  EXPECT_EQ(weights(path("ended", "0000")), weights(folder_.path("runs/version_0")));
  EXPECT_EQ(read_text(path("ended", "0000/metrics.csv")), read_text(folder_.path("runs/version_0/metrics.csv")));
}

TEST_F(SweepHalving, EndedBySignalBetweenTwoRunsItIsNotDone) {
  // The second run's end is that of its rung: nothing runs, and one is still to go on.
  const std::string script = folder_.path("run.sh");
  testing::write_text(script, "\"$@\"\nstatus=$?\ncase \"$*\" in\n*/0001/*) [ -e " + folder_.path("once") +
                                  " ] || { touch " + folder_.path("once") + "; kill -TERM $PPID; } ;;\nesac\n" +
                                  "exit $status\n");
  const auto all = words("sweep", {"--sweep.grid={model.lr: [0.01, 0.0001]}", "--trainer.max_epochs=4",
                                   "--sweep.successive_halving={min_epochs: 2, reduction_factor: 2}",
                                   "--sweep.command=[sh, " + script + "]"});
  EXPECT_EQ(testing::run_program(all, options_).status, 128 + SIGTERM);
  for (const Row& row : table("version_0")) EXPECT_NE(row.at("status"), "finished");
  const ProgramResult again = testing::run_program(all, options_);
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_FALSE(fs::exists(path("version_1", "")));
  const auto rows = table("version_0");
  EXPECT_EQ(rows.at(0).at("status"), "finished");
  EXPECT_EQ(rows.at(0).at("rung"), "1");
  EXPECT_EQ(rows.at(1).at("status"), "stopped_early");
}

}  // namespace
}  // namespace levin
