#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/interchange/pickle_value.h>
#include <levin/core/interchange/pickler.h>

#include "../checkpoint/sharded_fixture.h"
#include "../support/thread_collective.h"
#include "tests/support/tree.h"

#include <ATen/ops/full.h>
#include <sys/wait.h>

#include <cstdlib>

namespace levin {
namespace {

/// Runs the executable as a user would.
class LevinCheckpointTool : public testing::CheckpointTest {
 protected:
  void SetUp() override {
    if (tool_.empty() || !std::filesystem::exists(tool_))
      GTEST_SKIP() << "no levin-checkpoint at '" << tool_ << "'; build the tools or set LEVIN_CHECKPOINT_TOOL";
    write_checkpoint(path("a"), testing::sample_tree(1), {.global_step = 1});
    State other = read_checkpoint(path("a"));
    other["loops"]["global_step"] = int64_t{2};
    write_checkpoint(path("b"), other, {.global_step = 2});
  }

  struct Result {
    int status;
    std::string output;
    std::string errors;
  };
  Result run(const std::string& arguments) const {
    const std::string command = "cd '" + folder_ + "' && '" + tool_ + "' " + arguments + " >output 2>errors";
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), testing::read_bytes(path("output")), testing::read_bytes(path("errors"))};
  }

 private:
  static std::string find_tool() {
    if (const char* environment = std::getenv("LEVIN_CHECKPOINT_TOOL")) return environment;
    return testing::build_path("bin/levin-checkpoint");
  }
  const std::string tool_ = find_tool();
};

TEST_F(LevinCheckpointTool, Show) {
  const Result result = run("show a");
  EXPECT_EQ(result.status, 0) << result.errors;
  EXPECT_NE(result.output.find("cursor\n  epoch = 2\n  global_step = 1\n"), std::string::npos) << result.output;
  EXPECT_EQ(result.output.find("net.0.weight"), std::string::npos);
  EXPECT_NE(run("show --tensors a").output.find("model/net.0.weight"), std::string::npos);
}

TEST_F(LevinCheckpointTool, Verify) {
  const Result good = run("verify a");
  EXPECT_EQ(good.status, 0);
  EXPECT_NE(good.output.find("model.safetensors"), std::string::npos) << good.output;
  testing::flip_bit(path("a/state.safetensors"), 12);
  const Result damaged = run("verify a");
  EXPECT_EQ(damaged.status, 1);
  EXPECT_NE(damaged.output.find("is damaged; got checksum"), std::string::npos) << damaged.output;
  std::filesystem::remove(path("a/manifest.json"));
  const Result without = run("verify a");
  EXPECT_EQ(without.status, 1);
  EXPECT_NE(without.output.find("a folder without manifest.json"), std::string::npos) << without.output;
}

TEST_F(LevinCheckpointTool, Diff) {
  const Result same = run("diff a a");
  EXPECT_EQ(same.status, 0);
  EXPECT_EQ(same.output, "same: 4 tensors, 5 values; different: 0\n");
  const Result different = run("diff a b");
  EXPECT_EQ(different.status, 1);
  EXPECT_EQ(different.output, "loops/global_step: 1 -> 2\nsame: 4 tensors, 4 values; different: 1\n");
}

TEST_F(LevinCheckpointTool, Consolidate) {
  const auto trees = testing::shard_evenly(testing::sample_tree(1), 3);
  testing::run_ranks(3, [&](testing::ThreadCollective& ranks) {
    write_sharded_checkpoint(path("sharded"), trees[static_cast<size_t>(ranks.rank())], {.global_step = 1}, ranks);
  });
  EXPECT_NE(run("show --tensors sharded").output.find("model/net.0.weight"), std::string::npos);
  EXPECT_NE(run("verify sharded").output.find("model.rank-00002.safetensors"), std::string::npos);
  const Result result = run("consolidate sharded whole");
  EXPECT_EQ(result.status, 0) << result.errors;
  EXPECT_EQ(run("verify whole").status, 0);
  EXPECT_EQ(run("diff sharded whole").output, "same: 4 tensors, 5 values; different: 0\n");
  EXPECT_EQ(run("consolidate sharded weights.safetensors").status, 0);
  EXPECT_EQ(testing::read_bytes(path("weights.safetensors")), testing::read_bytes(path("whole/model.safetensors")));
}

TEST_F(LevinCheckpointTool, AFolderOfOthersIsNotReplaced) {
  std::filesystem::create_directories(path("hf"));
  std::filesystem::copy_file(path("a/model.safetensors"), path("hf/model.safetensors"));
  testing::write_bytes(path("hf/config.json"), "{}");
  const Result result = run("consolidate a hf");
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.errors.find("the name is taken; got a folder that is no checkpoint"), std::string::npos);
  EXPECT_EQ(testing::read_bytes(path("hf/config.json")), "{}");
}

TEST_F(LevinCheckpointTool, FoldersOfHuggingFaceAreReadAsWeights) {
  for (const char* arguments : {"--max-shard-bytes=5000000000", "--max-shard-bytes=1"}) {
    const std::string folder = std::string(arguments).ends_with("=1") ? "parts" : "single";
    testing::write_bytes(path("config.json"), "{}");
    const std::string convert = "convert a " + folder + " --format huggingface --model-config config.json " + arguments;
    ASSERT_EQ(run(convert).status, 0) << run(convert).errors;
    ASSERT_EQ(std::filesystem::exists(path(folder + "/model.safetensors")), folder == "single");
    const Result shown = run("show --tensors " + folder);
    EXPECT_EQ(shown.status, 0) << shown.errors;
    EXPECT_NE(shown.output.find("net.0.weight"), std::string::npos) << shown.output;
    for (const std::string& pair : {"diff a " + folder, "diff " + folder + " a", "diff " + folder + " " + folder}) {
      const Result same = run(pair);
      EXPECT_EQ(same.status, 0) << pair << "\n" << same.output << same.errors;
      EXPECT_NE(same.output.find("different: 0"), std::string::npos) << same.output;
    }
  }
}

TEST_F(LevinCheckpointTool, RulesRenameWeightsAlone) {
  testing::write_bytes(path("rules.yaml"), "[{match: 'net.(.*)', to: 'body.$1'}]");
  const Result result = run("convert a a.ckpt --rules " + path("rules.yaml"));
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.errors.find("hint: --weights-only"), std::string::npos) << result.errors;
  EXPECT_FALSE(std::filesystem::exists(path("a.ckpt")));
}

TEST_F(LevinCheckpointTool, KeySaysWhereAFileHasItsWeights) {
  PickleDocument document;
  const auto weights = [&](double value) { return document.dict({{"w", document.tensor(at::full({2, 2}, value))}}); };
  const PickleValue* const root =
      document.dict({{"model", weights(1)}, {"ema", weights(2)}, {"best_acc1", document.tensor(at::full({}, 71.5))}});
  write_torch_file(path("two.pth"), *root);
  for (const char* arguments : {"show two.pth", "convert two.pth w.safetensors", "diff two.pth two.pth"}) {
    const Result result = run(arguments);
    EXPECT_EQ(result.status, 2) << arguments;
    EXPECT_NE(result.errors.find("got model, ema; hint: say which with 'key'"), std::string::npos) << result.errors;
  }
  EXPECT_NE(run("show two.pth --key ema").output.find("1 tensors, 4 elements, 16 B\n  at ema\n"), std::string::npos)
      << run("show two.pth --key ema").output;
  EXPECT_EQ(run("convert two.pth w.safetensors --key ema").status, 0);
  EXPECT_EQ(run("diff two.pth w.safetensors --key ema").status, 0);
  EXPECT_EQ(run("diff two.pth w.safetensors --key model").output,
            "w: other elements\nsame: 0 tensors, 0 values; different: 1\n");

  write_torch_file(path("one.pth"),
                   *document.dict({{"state_dict", weights(2)}, {"best_acc1", document.tensor(at::full({}, 71.5))}}));
  const Result converted = run("convert one.pth w.pth");
  EXPECT_EQ(converted.status, 0);
  EXPECT_NE((converted.output + converted.errors).find("those of 'state_dict'"), std::string::npos);
  EXPECT_NE((converted.output + converted.errors).find("left out: best_acc1"), std::string::npos);
  EXPECT_EQ(run("diff w.pth w.safetensors").status, 0);
}

TEST_F(LevinCheckpointTool, Help) {
  const Result result = run("--help");
  EXPECT_EQ(result.status, 0);
  EXPECT_TRUE(result.output.starts_with("Usage: levin-checkpoint show DIR")) << result.output;
}

TEST_F(LevinCheckpointTool, ErrorsAreOneLineAndStatusTwo) {
  testing::flip_bit(path("b/manifest.json"), 12);
  for (const char* arguments :
       {"shw a", "diff a", "verify none", "show b", "--what", "verify a --tensors", "consolidate a",
        "consolidate none c", "consolidate a a", "diff a a --weights-only", "verify a --key ema",
        "show a --max-shard-bytes=9", "convert a c --format huggingface --max-shard-bytes=0"}) {
    const Result result = run(arguments);
    EXPECT_EQ(result.status, 2) << arguments;
    EXPECT_EQ(result.output, "") << arguments;
    EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1) << arguments << "\n" << result.errors;
    EXPECT_TRUE(result.errors.starts_with("[")) << result.errors;
  }
}

}  // namespace
}  // namespace levin
