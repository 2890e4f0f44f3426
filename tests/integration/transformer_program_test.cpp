// The transformer example: the same losses under every strategy, bitwise resume, and text in the end.

#include "../support/run_program.h"
#include "printed_table.h"
#include "tests/support/tree.h"
#include "tiny_fashion.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace levin {
namespace {

namespace fs = std::filesystem;
using testing::ProgramResult;
using testing::read_text;
using testing::RunningProgram;

const std::string kTransformer = testing::build_path("bin/transformer");
const std::string kTiny = testing::source_path("examples/transformer/tiny.yaml");
constexpr const char* kBible = "/usr/bin/bible";

/// Sentences of 28 different characters, line ends included.
std::string made_up_text() {
  const std::vector<std::string> who = {"the quick fox", "a lazy dog", "my vexed wizard", "one jumping bird"};
  const std::vector<std::string> what = {" sees ", " hears ", " follows ", " keeps ", " finds "};
  std::string text;
  for (size_t i = 0; i < 160; ++i) text += who[i % 4] + what[i % 5] + who[i / 3 % 4] + "\n";
  return text;
}

class TransformerProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kTransformer)) GTEST_SKIP() << "there is no " << kTransformer << "; hint: build the examples";
    testing::write_text(folder_.path("text"), made_up_text());
  }

  std::vector<std::string> words(const std::string& command, const std::vector<std::string>& more = {},
                                 const std::string& root = "runs") const {
    std::vector<std::string> all = {kTransformer,
                                    command,
                                    "--config",
                                    kTiny,
                                    "--data.path=" + folder_.path("text"),
                                    "--data.context=16",
                                    "--data.global_batch_size=8",
                                    "--model.layers=2",
                                    "--model.width=32",
                                    "--model.lr=0.01",
                                    "--model.warmup_steps=10",
                                    "--model.sample_length=40",
                                    "--trainer.max_steps=40",
                                    "--trainer.val_check_interval=20",
                                    "--trainer.log_every_n_steps=1",
                                    "--trainer.accelerator=cpu",
                                    "--trainer.default_root_dir=" + folder_.path(root)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  ProgramResult run(const std::string& command, const std::vector<std::string>& more = {},
                    const std::string& root = "runs") const {
    return testing::run_program(words(command, more, root), options_);
  }
  std::string last(const std::string& root, int64_t version = 0) const {
    return folder_.path(root + "/version_" + std::to_string(version) + "/checkpoints/last");
  }

  testing::TemporaryFolder folder_;
  const testing::ProgramOptions options_{.environment = {{"OMP_NUM_THREADS", "1"}}};
};

TEST_F(TransformerProgram, EveryStrategyComesToTheSameLoss) {
  const ProgramResult one = run("fit");
  ASSERT_EQ(one.status, 0) << one.err;
  EXPECT_LT(value_of("val_perplexity", one.out), 10) << "28 where all characters are alike";
  for (const char* strategy : {"dp", "ddp", "ddp_spawn", "ddp_threads"}) {
    const ProgramResult two = run("fit", {"--trainer.strategy=" + std::string(strategy), "--trainer.devices=2"},
                                  std::string("runs-") + strategy);
    ASSERT_EQ(two.status, 0) << strategy << "\n" << two.out << two.err;
    for (const char* name : {"train_loss", "val_loss", "val_perplexity"})
      EXPECT_NEAR(value_of(name, two.out), value_of(name, one.out), 2e-3 * value_of(name, one.out))
          << strategy << " " << name;
  }
}

TEST_F(TransformerProgram, StagesWhoseLayersAreDividedComeToTheSameLoss) {
  const ProgramResult one = run("fit");
  ASSERT_EQ(one.status, 0) << one.err;
  const ProgramResult four = run(
      "fit", {"--trainer.strategy={pipeline: 2, tensor: 2, start_method: thread}", "--trainer.devices=4"}, "runs-mesh");
  ASSERT_EQ(four.status, 0) << four.out << four.err;
  for (const char* name : {"train_loss", "val_loss", "val_perplexity"})
    EXPECT_NEAR(value_of(name, four.out), value_of(name, one.out), 1e-3 * value_of(name, one.out)) << name;
}

TEST_F(TransformerProgram, RecomputedBlocksGiveTheSameWeightsToTheBit) {
  const std::vector<std::string> dropout = {"--model.dropout=0.1", "--model.tie_weights=false"};
  ASSERT_EQ(run("fit", dropout, "plain").status, 0);
  auto recomputed = dropout;
  recomputed.push_back("--trainer.activation_checkpointing=[Block]");
  const ProgramResult result = run("fit", recomputed, "recomputed");
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(read_text(last("plain") + "/model.safetensors") == read_text(last("recomputed") + "/model.safetensors"));
}

TEST_F(TransformerProgram, AnInterruptedRunEndsAsOneThatWasNot) {
  std::vector<std::string> setting;
  ProgramResult ended{.status = 0};
  // Weights depend on the number of steps: more of them where all were done before the signal came.
  for (int64_t steps = 200; ended.status == 0 && steps <= 1'000'000; steps *= 4) {
    fs::remove_all(folder_.path("parts"));
    setting = {"--model.dropout=0.1", "--trainer.max_steps=" + std::to_string(steps)};
    RunningProgram program(words("fit", setting, "parts"), options_);
    const std::string metrics = folder_.path("parts/version_0/metrics.csv");
    ASSERT_TRUE(program.wait_until([&] { return fs::exists(metrics) && fs::file_size(metrics) > 0; })) << program.err();
    program.send(SIGINT);
    ended = program.wait();
  }
  ASSERT_EQ(ended.status, 128 + SIGINT) << ended.err;
  ASSERT_EQ(run("fit", setting, "whole").status, 0);
  ASSERT_FALSE(read_text(last("parts") + "/model.safetensors") == read_text(last("whole") + "/model.safetensors"));

  auto on = setting;
  on.push_back("--ckpt=last");
  const ProgramResult resumed = run("fit", on, "parts");
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  for (const char* file : {"/model.safetensors", "/optimizer.safetensors"})
    EXPECT_TRUE(read_text(last("parts", 1) + file) == read_text(last("whole") + file)) << file;
}

TEST_F(TransformerProgram, PredictionGoesOnFromThePrompt) {
  ASSERT_EQ(run("fit").status, 0);
  const ProgramResult result =
      run("predict", {"--ckpt=last", "--data.prompt=the quick", "--data.samples=3", "--model.temperature=0"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out.find("the quick"), 0u) << result.out;
  EXPECT_NE(result.out.find("text [3, 49]"), std::string::npos) << result.out;
  // The likeliest character does not depend on chance.
  const size_t length = result.out.find("\n\n");
  EXPECT_EQ(result.out.compare(0, length, result.out, length + 2, length), 0) << result.out;
}

TEST_F(TransformerProgram, WhatDoesNotFitIsSaid) {
  const auto error = [&](const std::vector<std::string>& more, int status, const std::string& part) {
    const ProgramResult result = run("fit", more);
    EXPECT_EQ(result.status, status) << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  };
  error({"--model.heads=3"}, 2, "model.width must be a multiple of model.heads");
  error({"--model.vocabulary=20"}, 2, "model.vocabulary must be at least the number of characters in the text");
  error({"--model.context=8"}, 1, "model.context must be at least data.context");
  error({"--data.context=100000"}, 1, "the text is too short");
  error({"--data.path=" + folder_.path("missing")}, 1, "cannot read data.path");
}

TEST(TransformerReal, LearnsTheBible) {
  if (!fs::exists(kTransformer)) GTEST_SKIP() << "there is no " << kTransformer << "; hint: build the examples";
  if (!fs::exists(kBible)) GTEST_SKIP() << "there is no " << kBible << "; hint: apt-get install bible-kjv";
  const testing::TemporaryFolder folder;
  const ProgramResult result = testing::run_program(
      {kTransformer, "fit", "--config", kTiny, "--model.layers=2", "--model.width=64", "--model.lr=0.01",
       "--model.warmup_steps=10", "--data.context=64", "--trainer.max_steps=60", "--trainer.val_check_interval=60",
       "--trainer.accelerator=cpu", "--trainer.default_root_dir=" + folder.path("runs")});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_LT(value_of("val_perplexity", result.out), 20) << "75 where all characters are alike\n" << result.out;
  EXPECT_GT(value_of("tokens_per_second", result.out), 0) << result.out;
}

}  // namespace
}  // namespace levin
