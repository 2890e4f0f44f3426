#include <levin/core/devices/gpu_selection.h>

#include <levin/core/base/error.h>

#include "../support/captured_log.h"
#include "../support/eventually.h"
#include "../support/stand_in_nvml.h"
#include "../support/threads.h"
#include "tests/support/tree.h"

#include <gmock/gmock.h>

#include <chrono>
#include <set>
#include <thread>
#include <vector>

namespace levin {
namespace {

using ::testing::AllOf;
using testing::CapturedLog;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StandInNvml;
using Gpus = std::vector<int64_t>;

/// CUDA numbers GPUs in the opposite order of NVML's, whose GPU i has the bus 10 + i.
const std::vector<PciAddress> kCudaGpus = {{0, 13, 0}, {0, 12, 0}, {0, 11, 0}, {0, 10, 0}};

class GpuSelectionTest : public ::testing::Test {
 protected:
  void SetUp() override { TearDown(); }
  void TearDown() override {
    unsetenv("LEVIN_SELECTED_GPUS");
    unsetenv("LEVIN_RANK");
  }
  static std::string script(const std::string& more) {
    return "gpus 4\ngpu0.bus 10\ngpu1.bus 11\ngpu2.bus 12\ngpu3.bus 13\n" + more;
  }
  /// Of a process that has selected none.
  static Gpus selected(int64_t count) {
    unsetenv("LEVIN_SELECTED_GPUS");
    return GpuSelection().select(count, kCudaGpus);
  }
  static std::string refusal(int64_t count) {
    try {
      selected(count);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(GpuSelectionTest, TakesThoseThatNobodyUsesByCudasNumbers) {
  const StandInNvml stand_in(script("gpu3.process.4321 512\ngpu1.process.77 9000\n"));
  EXPECT_THAT(selected(2), ElementsAre(1, 3)) << "NVML's GPUs 2 and 0";
}

TEST_F(GpuSelectionTest, OneIsEnoughAndAllAreAllThatAreFree) {
  const StandInNvml stand_in(script("gpu3.process.4321 512\n"));
  EXPECT_THAT(selected(1), ElementsAre(1));
  EXPECT_THAT(selected(-1), ElementsAre(1, 2, 3));
}

TEST_F(GpuSelectionTest, ThisProcessDoesNotStandInItsOwnWay) {
  const StandInNvml stand_in(script("gpu3.self 3000\ngpu3.memory 3000\n"));
  EXPECT_THAT(selected(1), ElementsAre(0));
}

TEST_F(GpuSelectionTest, SaysWhoUsesTheOthers) {
  const StandInNvml stand_in(
      script("gpu3.process.4321 512\ngpu3.process.55 -1\ngpu2.handle 4\ngpu1.memory 30000\ngpu0.lost_after 0\n"));
  EXPECT_THAT(refusal(2), AllOf(HasSubstr("2 free GPUs are wanted; got 0 of 4"),
                                HasSubstr("cuda:0, GPU 3 (Stand-in 3, GPU-0000-3), is used by process 4321 (512 MiB), "
                                          "process 55; "),
                                HasSubstr("cuda:2, GPU 1 (Stand-in 1, GPU-0000-1), has 30000 MiB in use by processes "
                                          "that NVML does not list"),
                                HasSubstr("hint: end those processes")));
}

TEST_F(GpuSelectionTest, GoesByMemoryWhereProcessesAreNotTold) {
  const StandInNvml stand_in(script("deny.processes 1\ngpu3.memory 5000\ngpu2.memory 900\n"));
  EXPECT_THAT(selected(3), ElementsAre(1, 2, 3));
  const StandInNvml silent(script("deny.processes 1\ndeny.memory 1\n"));
  EXPECT_THAT(refusal(1), HasSubstr("does not say who uses it"));
}

TEST_F(GpuSelectionTest, WithoutNvmlSaysWhatToDo) {
  setenv("LEVIN_NVML_LIBRARY", testing::build_path("tests/no_nvml.so").c_str(), 1);
  const std::string said = refusal(1);
  unsetenv("LEVIN_NVML_LIBRARY");
  EXPECT_THAT(said,
              AllOf(HasSubstr("cannot find out which GPUs are free: NVML"), HasSubstr("trainer.devices: [0, 2]")));
}

TEST_F(GpuSelectionTest, StaysAsItIsForEachCount) {
  GpuSelection selection;
  {
    const StandInNvml stand_in(script("gpu3.process.4321 512\n"));
    EXPECT_THAT(selection.select(2, kCudaGpus), ElementsAre(1, 2));
  }
  // Now they are in use: by this run, whose processes a container may number otherwise.
  const StandInNvml later(script("gpu3.process.4321 512\ngpu2.process.10 1\ngpu1.process.11 1\n"));
  EXPECT_THAT(selection.select(1, kCudaGpus), ElementsAre(3)) << "no trainer has that one yet";
  EXPECT_THAT(selection.select(3, kCudaGpus), ElementsAre(1, 2, 3));
  EXPECT_THAT(selection.select(-1, kCudaGpus), ElementsAre(1, 2, 3)) << "more than the one of before";
  EXPECT_THAT(selection.select(2, kCudaGpus), ElementsAre(1, 2));
  EXPECT_THAT(selection.select(1, kCudaGpus), ElementsAre(3));
}

TEST_F(GpuSelectionTest, RanksThatAreProcessesGetTheSame) {
  {
    const StandInNvml stand_in(script("gpu3.process.4321 512\n"));
    GpuSelection selection;
    selection.select(2, kCudaGpus);
    selection.select(1, kCudaGpus);
    selection.select(-1, kCudaGpus);
  }
  const StandInNvml later(script("gpu0.process.9 1\ngpu1.process.9 1\ngpu2.process.9 1\ngpu3.process.9 1\n"));
  setenv("LEVIN_RANK", "1", 1);
  GpuSelection of_rank;
  EXPECT_THAT(of_rank.select(2, kCudaGpus), ElementsAre(1, 2));
  EXPECT_THAT(of_rank.select(1, kCudaGpus), ElementsAre(3));
  EXPECT_THAT(of_rank.select(-1, kCudaGpus), ElementsAre(1, 2, 3));

  // What another process has selected is not for one that is no rank of it.
  unsetenv("LEVIN_RANK");
  setenv("LEVIN_SELECTED_GPUS", "1 2:0,2", 1);
  const StandInNvml idle(script(""));
  EXPECT_THAT(GpuSelection().select(2, kCudaGpus), ElementsAre(0, 1));
}

TEST_F(GpuSelectionTest, ThreadsGetTheSame) {
  const StandInNvml stand_in(script("gpu3.process.4321 512\n"));
  GpuSelection selection;
  std::vector<Gpus> got(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < got.size(); ++i)
    threads.emplace_back([&, i] { got[i] = selection.select(1 + static_cast<int64_t>(i % 2), kCudaGpus); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(std::set<Gpus>(got.begin(), got.end()).size(), 2u);
  EXPECT_EQ(got[0].size(), 1u);
  EXPECT_EQ(got[1].size(), 2u);
}

TEST_F(GpuSelectionTest, ADriverThatHangsIsDoneWithout) {
  const StandInNvml stand_in(script("hang.processes 1\n"));
  const CapturedLog log;
  GpuSelection selection(std::chrono::milliseconds(200));
  EXPECT_THAT(selection.select(2, kCudaGpus), ElementsAre(0, 1));
  EXPECT_THAT(log.text(), HasSubstr("trainer.auto_select_gpus: the GPUs' driver has not said for 0.2 s who uses them, "
                                    "so cuda:0, cuda:1 are taken; hint: "));
  EXPECT_THAT(selection.select(-1, kCudaGpus), ElementsAre(0, 1, 2, 3));
  // Who was taken stays so: ranks do not wait again.
  GpuSelection again(std::chrono::hours(1));
  EXPECT_THAT(again.select(2, kCudaGpus), ElementsAre(0, 1));
  stand_in.let_go();
  EXPECT_TRUE(testing::eventually([] { return !testing::has_thread("levin-gpus"); }));
}

}  // namespace
}  // namespace levin
