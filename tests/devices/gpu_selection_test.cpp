#include <levin/core/devices/gpu_selection.h>

#include <levin/core/base/error.h>

#include "../support/stand_in_nvml.h"

#include <gmock/gmock.h>

namespace levin {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StandInNvml;

/// CUDA numbers GPUs in the opposite order of NVML's, whose GPU i has the bus 10 + i.
const std::vector<PciAddress> kCudaGpus = {{0, 13, 0}, {0, 12, 0}, {0, 11, 0}, {0, 10, 0}};

class GpuSelectionTest : public ::testing::Test {
 protected:
  void TearDown() override {
    unsetenv("LEVIN_SELECTED_GPUS");
    unsetenv("LEVIN_RANK");
  }
  static std::string script(const std::string& more) {
    return "gpus 4\ngpu0.bus 10\ngpu1.bus 11\ngpu2.bus 12\ngpu3.bus 13\n" + more;
  }
  static std::string refusal(int64_t count) {
    try {
      select_free_gpus(count, kCudaGpus);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(GpuSelectionTest, TakesThoseThatNobodyUsesByCudasNumbers) {
  const StandInNvml stand_in(script("gpu3.process.4321 512\ngpu1.process.77 9000\n"));
  EXPECT_THAT(select_free_gpus(2, kCudaGpus), ElementsAre(1, 3)) << "NVML's GPUs 2 and 0";
}

TEST_F(GpuSelectionTest, OneIsEnoughAndAllAreAllThatAreFree) {
  const StandInNvml stand_in(script("gpu3.process.4321 512\n"));
  EXPECT_THAT(select_free_gpus(1, kCudaGpus), ElementsAre(1));
  unsetenv("LEVIN_SELECTED_GPUS");
  EXPECT_THAT(select_free_gpus(-1, kCudaGpus), ElementsAre(1, 2, 3));
}

TEST_F(GpuSelectionTest, ThisProcessDoesNotStandInItsOwnWay) {
  const StandInNvml stand_in(script("gpu3.self 3000\ngpu3.memory 3000\n"));
  EXPECT_THAT(select_free_gpus(1, kCudaGpus), ElementsAre(0));
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
  EXPECT_THAT(select_free_gpus(3, kCudaGpus), ElementsAre(1, 2, 3));
  unsetenv("LEVIN_SELECTED_GPUS");
  const StandInNvml silent(script("deny.processes 1\ndeny.memory 1\n"));
  EXPECT_THAT(refusal(1), HasSubstr("does not say who uses it"));
}

TEST_F(GpuSelectionTest, WithoutNvmlSaysWhatToDo) {
  setenv("LEVIN_NVML_LIBRARY", "/nowhere/nvml.so", 1);
  const std::string said = refusal(1);
  unsetenv("LEVIN_NVML_LIBRARY");
  EXPECT_THAT(said,
              AllOf(HasSubstr("cannot find out which GPUs are free: NVML"), HasSubstr("trainer.devices: [0, 2]")));
}

TEST_F(GpuSelectionTest, StaysAsItIsForThisProcessAndItsRanks) {
  std::vector<int64_t> first;
  {
    const StandInNvml stand_in(script("gpu3.process.4321 512\n"));
    first = select_free_gpus(2, kCudaGpus);
    EXPECT_THAT(first, ElementsAre(1, 2));
  }
  // Now they are in use: by this run, whose processes a container may number otherwise.
  const StandInNvml later(script("gpu3.process.4321 512\ngpu2.process.10 1\ngpu1.process.11 1\n"));
  EXPECT_EQ(select_free_gpus(2, kCudaGpus), first);
  EXPECT_THAT(select_free_gpus(3, kCudaGpus), ElementsAre(1, 2, 3));

  // What another process has selected counts for its ranks only.
  setenv("LEVIN_SELECTED_GPUS", "1 0 2", 1);
  EXPECT_THAT(select_free_gpus(1, kCudaGpus), ElementsAre(3));
  setenv("LEVIN_SELECTED_GPUS", "1 0 2", 1);
  setenv("LEVIN_RANK", "1", 1);
  EXPECT_THAT(select_free_gpus(2, kCudaGpus), ElementsAre(0, 2));
}

}  // namespace
}  // namespace levin
