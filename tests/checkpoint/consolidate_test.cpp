#include <levin/core/checkpoint/consolidate.h>

#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/checkpoint/safetensors.h>

#include <ATen/ops/arange.h>
#include "../support/faulty_file_system.h"
#include "../support/memory_growth.h"
#include "../support/thread_collective.h"
#include "sharded_fixture.h"
#include "tests/support/run_program.h"
#include "tests/support/tree.h"

#include <array>
#include <cstdio>
#include <cstdlib>

namespace levin {
namespace {

using testing::message_of;
using testing::ThreadCollective;

class Consolidate : public testing::CheckpointTest {
 protected:
  void write(const State& tree, int64_t ranks) const {
    const auto trees = testing::shard_evenly(tree, ranks);
    testing::run_ranks(ranks, [&](ThreadCollective& group) {
      write_sharded_checkpoint(source_, trees[static_cast<size_t>(group.rank())],
                               {.epoch = 2, .global_step = 7, .world_size = ranks, .levin_version = "1.2.3"}, group);
    });
  }

  const std::string source_ = path("sharded");
  const std::string target_ = path("whole");
};

TEST_F(Consolidate, MakesTheCheckpointThatOneRankWouldHaveWritten) {
  State tree = testing::sample_tree(3);
  tree["metrics"]["nan"] = std::nan("");
  tree["metrics"]["channels_last"] = at::rand({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast);
  write(tree, 3);
  consolidate_checkpoint(source_, target_);
  write_checkpoint(path("expected"), tree, read_info(source_));
  const auto names = FileSystem::current().list(path("expected"));
  EXPECT_EQ(FileSystem::current().list(target_), names);
  for (const auto& name : names)
    EXPECT_EQ(testing::read_bytes(target_ + "/" + name), testing::read_bytes(path("expected/" + name))) << name;
}

TEST_F(Consolidate, TheModelAlone) {
  const State tree = testing::sample_tree(3);
  write(tree, 2);
  // The optimizer's shards are not needed.
  std::filesystem::remove(source_ + "/optimizer.rank-00001.safetensors");
  consolidate_checkpoint(source_, path("weights.safetensors"));
  write_checkpoint(target_, tree, {});
  EXPECT_EQ(testing::read_bytes(path("weights.safetensors")), testing::read_bytes(target_ + "/model.safetensors"));
  EXPECT_EQ(FileSystem::current().list(folder_), (std::vector<std::string>{"sharded", "weights.safetensors", "whole"}));
}

TEST_F(Consolidate, ReadByPython) {
  State tree = testing::sample_tree(3);
  tree["model"]["numbers"] = at::arange(1000, at::kFloat).view({10, 100});
  write(tree, 3);
  consolidate_checkpoint(source_, target_);
  const auto read =
      testing::run_program({testing::torch_python(), testing::source_path("tests/checkpoint/read_safetensors.py"),
                            target_ + "/model.safetensors"});
  if (read.status == 77) GTEST_SKIP() << testing::torch_python() << " has no safetensors and torch; set LEVIN_PYTHON";
  ASSERT_EQ(read.status, 0) << read.err;
  // name, type, shape, sum of i * element[i]
  EXPECT_EQ(read.out,
            "net.0.bias|F32|4,|14\n"
            "net.0.weight|F32|4,3,|198\n"
            "numbers|F32|10,100,|3.32834e+08\n");
}

TEST_F(Consolidate, RefusesWhatItCannotDoAndLeavesNothing) {
  const State tree = testing::sample_tree(3);
  write(tree, 2);
  const auto refusal = [&](const std::string& target) {
    const std::string message = message_of([&] { consolidate_checkpoint(source_, target); });
    EXPECT_EQ(FileSystem::current().list(folder_), (std::vector<std::string>{"file.safetensors", "home", "sharded"}));
    return message;
  };
  std::filesystem::create_directories(path("home"));
  testing::write_bytes(path("home/thesis.tex"), "precious");
  testing::write_bytes(path("file.safetensors"), "precious");
  EXPECT_EQ(refusal(path("home/../sharded")),
            "[checkpoint] cannot consolidate " + source_ + " in place; valid: a new name");
  EXPECT_NE(refusal(path("home")).find("the name is taken; got a folder that is no checkpoint"), std::string::npos);
  EXPECT_EQ(refusal(path("file.safetensors")),
            "[checkpoint] cannot write " + path("file.safetensors") + ": the name is taken; valid: a new name");
  EXPECT_EQ(testing::read_bytes(path("file.safetensors")), "precious");
  {
    testing::FaultyFileSystem files;
    files.fail_after_bytes(300);
    EXPECT_NE(refusal(target_).find("No space left on device"), std::string::npos);
    EXPECT_NE(refusal(path("weights.safetensors")).find("No space left on device"), std::string::npos);
  }
  const std::string shard = source_ + "/model.rank-00001.safetensors";
  testing::flip_bit(shard, std::filesystem::file_size(shard) - 1);
  EXPECT_NE(refusal(target_).find("model.rank-00001.safetensors is damaged"), std::string::npos);
  EXPECT_NE(refusal(path("weights.safetensors")).find("model.rank-00001.safetensors is damaged"), std::string::npos);
}

TEST_F(Consolidate, MemoryDoesNotGrowWithTheModel) {
  {
    State tree = State::map();
    for (const char* name : {"a", "b", "c"}) tree["model"][name] = at::full({16 * 1024, 1024}, 1.5);  // 64 MiB each
    State optimizer = State::map();
    optimizer["state"] = State::map();
    tree["optimizers"].push_back(optimizer);
    write(tree, 2);
  }
  write_checkpoint(path("small"), testing::sample_tree(1), {});
  consolidate_checkpoint(path("small"), path("copy"));  // the code has run once
  for (const std::string& target : {target_, path("weights.safetensors")}) {
    const int64_t grown = testing::memory_growth([&] { consolidate_checkpoint(source_, target); });
    // 192 MiB pass through a buffer of 16; malloc may keep the one of the tensor before.
    EXPECT_LT(grown, 40) << "MiB";
    std::filesystem::remove_all(target);
  }
}

}  // namespace
}  // namespace levin
