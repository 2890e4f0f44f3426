// The example that measures a pipeline's memory: each stage needs less than one device does.

#include "../support/run_program.h"
#include "printed_table.h"
#include "tests/support/tree.h"
#include "tiny_fashion.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

namespace levin {
namespace {

namespace fs = std::filesystem;
using testing::ProgramResult;

const std::string kConvPipeline = testing::build_path("bin/conv_pipeline");

/// Megabytes of each rank, as the program prints them.
std::vector<int64_t> printed_memory(const std::string& out) {
  const std::string label = "memory by rank (MB):";
  const size_t at = out.find(label);
  if (at == std::string::npos) return {};
  std::istringstream line(out.substr(at + label.size(), out.find('\n', at) - at - label.size()));
  std::vector<int64_t> memory;
  for (int64_t value; line >> value;) memory.push_back(value);
  return memory;
}

class ConvPipelineProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kConvPipeline)) GTEST_SKIP() << "there is no " << kConvPipeline << "; hint: build the examples";
    testing::write_tiny_fashion(folder_.path("data"), 96, 10);
  }

  ProgramResult fit(const std::string& strategy, int devices, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {kConvPipeline,
                                      "fit",
                                      "--config",
                                      testing::source_path("examples/conv_pipeline/conv_pipeline.yaml"),
                                      "--data.root=" + folder_.path("data"),
                                      "--data.val_size=0",
                                      "--data.batch_size=48",
                                      "--model.channels=16",
                                      "--trainer.log_every_n_steps=1",
                                      "--trainer.accelerator=cpu",
                                      "--trainer.strategy=" + strategy,
                                      "--trainer.devices=" + std::to_string(devices),
                                      "--trainer.default_root_dir=" + folder_.path("runs")};
    words.insert(words.end(), more.begin(), more.end());
    return testing::run_program(words, {.environment = {{"OMP_NUM_THREADS", "1"}}});
  }

  testing::TemporaryFolder folder_;
};

TEST_F(ConvPipelineProgram, EachStageNeedsLessThanOneDevice) {
  const ProgramResult one = fit("single_device", 1);
  ASSERT_EQ(one.status, 0) << one.err;
  const std::vector<int64_t> whole = printed_memory(one.out);
  ASSERT_EQ(whole.size(), 1u) << one.out;
  EXPECT_GT(whole[0], 10);
  std::vector<int64_t> plain;
  for (const char* strategy : {"{name: pipeline, balance: [6, 18], micro_batches: 8}",
                               "{name: pipeline_threads, balance: [6, 18], micro_batches: 8, checkpoint: always}",
                               "{name: pipeline, balance: auto, balance_by: memory, micro_batches: 8}"}) {
    const ProgramResult two = fit(strategy, 2);
    ASSERT_EQ(two.status, 0) << strategy << "\n" << two.err;
    const std::vector<int64_t> stages = printed_memory(two.out);
    ASSERT_EQ(stages.size(), 2u) << two.out;
    for (const int64_t stage : stages) {
      EXPECT_GT(stage, 0) << strategy;
      EXPECT_LT(stage, whole[0]) << strategy;
    }
    // The first stage has most of the activations; recomputing them costs less memory than keeping them.
    if (plain.empty()) {
      plain = stages;
    } else if (std::string(strategy).find("always") != std::string::npos) {
      EXPECT_LT(stages[0], plain[0]) << two.out;
    }
  }
}

TEST_F(ConvPipelineProgram, ABalanceThatDoesNotAddUpIsRefused) {
  const ProgramResult result = fit("{name: pipeline_threads, balance: [12, 11]}", 2);
  EXPECT_EQ(result.status, 2) << result.err;
  EXPECT_NE(result.err.find("the sequential `net` has 24"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace levin
