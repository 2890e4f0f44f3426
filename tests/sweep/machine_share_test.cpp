#include <levin/core/sweep/machine_share.h>

#include <levin/core/base/error.h>
#include <levin/core/options/options.h>

#include <gmock/gmock-matchers.h>

#include <string>

namespace levin::sweep {
namespace {

using ::testing::HasSubstr;

RunDevices gpus(int64_t count) { return {.count = count, .are_gpus = true}; }

TEST(MachineShare, RunsDivideTheCoresAndRanksOfARunItsPart) {
  MachineShare machine(2, 8, {}, /*sets_threads=*/true);
  EXPECT_EQ(machine.take(0, {.count = 1})->at("OMP_NUM_THREADS"), "4");
  EXPECT_EQ(machine.take(1, {.count = 2})->at("OMP_NUM_THREADS"), "2");
  EXPECT_EQ(machine.take(1, {.count = 64})->at("OMP_NUM_THREADS"), "1");
}

TEST(MachineShare, ThreadsThatTheUserHasSetStay) {
  MachineShare machine(2, 8, {}, /*sets_threads=*/false);
  EXPECT_TRUE(machine.take(0, {.count = 1})->empty());
}

TEST(MachineShare, ARunWaitsUntilItsGpusAreFree) {
  MachineShare machine(3, 8, {"4", "5", "GPU-a"}, true);
  EXPECT_EQ(machine.take(0, gpus(2))->at("CUDA_VISIBLE_DEVICES"), "4,5");
  EXPECT_EQ(machine.take(1, gpus(2)), std::nullopt);
  EXPECT_EQ(machine.take(2, gpus(1))->at("CUDA_VISIBLE_DEVICES"), "GPU-a");
  machine.give_back(0);
  EXPECT_EQ(machine.take(1, gpus(2))->at("CUDA_VISIBLE_DEVICES"), "4,5");
}

TEST(MachineShare, AllGpusAreThoseOfTheRunsShare) {
  MachineShare machine(2, 8, {"0", "1", "2", "3"}, true);
  EXPECT_EQ(machine.take(0, {.count = 4, .are_gpus = true, .all = true})->at("CUDA_VISIBLE_DEVICES"), "0,1");
}

TEST(MachineShare, ASingleRunAtATimeSeesTheGpusAsTheyAre) {
  MachineShare machine(1, 8, {"0", "1"}, true);
  EXPECT_FALSE(machine.take(0, gpus(2))->contains("CUDA_VISIBLE_DEVICES"));
  machine.check({.count = 2, .are_gpus = true, .are_named = true});
}

TEST(MachineShare, GpusByNumberCannotBeShared) {
  const MachineShare machine(2, 8, {"0", "1"}, true);
  EXPECT_THROW(machine.check({.count = 2, .are_gpus = true, .are_named = true}), ConfigError);
  EXPECT_NO_THROW(machine.check(gpus(2)));
}

RunDevices devices_of(const std::string& yaml, int64_t there) {
  return run_devices(schema_of<TrainerOptions>().resolve(Config::parse(yaml, {.source = "test"}), "trainer"),
                     [=](const Accelerator&) { return there; });
}

TEST(SweepRunDevices, AreCountedAsTheTrainerCountsThem) {
  EXPECT_EQ(devices_of("{accelerator: cpu, devices: 3, num_nodes: 2}", 0).count, 3);
  EXPECT_EQ(devices_of("{accelerator: cpu, devices: 3, num_nodes: 2}", 0).hosts, 2);
  EXPECT_FALSE(devices_of("{devices: 1}", 0).are_gpus);
  EXPECT_TRUE(devices_of("{devices: 2}", 4).are_gpus);
  EXPECT_TRUE(devices_of("{devices: auto}", 4).all);
  EXPECT_TRUE(devices_of("{devices: [0, 3]}", 4).are_named);
}

TEST(SweepRunDevices, MoreThanThereAreAreRefused) {
  try {
    devices_of("{accelerator: gpu, devices: 8}", 2);
    FAIL() << "8 of 2 GPUs were found";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("asks for cuda:2; valid: cuda:0 to cuda:1 on this machine"));
  }
}

}  // namespace
}  // namespace levin::sweep
