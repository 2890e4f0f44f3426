#include <levin/core/accelerators/nvml.h>

#include "../support/stand_in_nvml.h"
#include "tests/support/tree.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace levin {
namespace {

using ::testing::HasSubstr;
using testing::StandInNvml;

TEST(NvmlTest, ThatIsAbsentIsAReasonAndNoError) {
  setenv("LEVIN_NVML_LIBRARY", testing::build_path("tests/no_nvml.so").c_str(), 1);
  const auto [nvml, reason] = Nvml::open();
  unsetenv("LEVIN_NVML_LIBRARY");
  EXPECT_EQ(nvml, nullptr);
  EXPECT_THAT(reason, HasSubstr("cannot be loaded: " + testing::build_path("tests/no_nvml.so")));
}

TEST(NvmlTest, AnotherLibraryIsRefusedByWhatItLacks) {
  setenv("LEVIN_NVML_LIBRARY", "libz.so.1", 1);
  const auto [nvml, reason] = Nvml::open();
  unsetenv("LEVIN_NVML_LIBRARY");
  EXPECT_EQ(nvml, nullptr);
  EXPECT_THAT(reason, HasSubstr("it lacks nvmlInit_v2"));
}

TEST(NvmlTest, WithoutADriverSaysSo) {
  const StandInNvml stand_in("init 9");
  const auto [nvml, reason] = Nvml::open();
  EXPECT_EQ(nvml, nullptr);
  EXPECT_THAT(reason, HasSubstr("says: Driver Not Loaded"));
}

TEST(NvmlTest, ListsGpusWithWhereTheyAre) {
  const StandInNvml stand_in("gpus 2\ngpu0.bus 195\ngpu1.bus 3");
  const auto nvml = Nvml::open().nvml;
  ASSERT_NE(nvml, nullptr);
  ASSERT_EQ(nvml->gpus().size(), 2u);
  EXPECT_EQ(nvml->gpus()[0].address, (PciAddress{0, 195, 0}));
  EXPECT_EQ(nvml->gpus()[1].address, (PciAddress{0, 3, 0}));
  EXPECT_EQ(nvml->gpus()[1].describe(), "GPU 1 (Stand-in 1, GPU-0000-1)");
}

TEST(NvmlTest, ReadsEveryQuantityInItsUnit) {
  const StandInNvml stand_in(
      "gpus 2\ngpu1.utilization 97\ngpu1.memory_utilization 45\ngpu1.memory 4096\ngpu1.temperature 71\n"
      "gpu1.power 512500\ngpu1.power_limit 700000\ngpu1.sm_clock 1755\ngpu1.memory_clock 2600\n"
      "gpu1.pcie_receive 3072\ngpu1.pcie_send 512\ngpu1.nvlink_send 524288\ngpu1.process.77 10\n"
      "gpu1.process.78 -1");
  const auto nvml = Nvml::open().nvml;
  ASSERT_NE(nvml, nullptr);
  using Clock = std::chrono::steady_clock;
  const auto before_first = Clock::now();
  const GpuReading first = nvml->read(1);
  const auto after_first = Clock::now();
  EXPECT_EQ(first.utilization_percent, 97);
  EXPECT_EQ(first.memory_utilization_percent, 45);
  EXPECT_EQ(first.memory_used_mib, 4096) << "without what the driver keeps for itself";
  EXPECT_EQ(first.memory_total_mib, 80 * 1024);
  EXPECT_EQ(first.temperature_celsius, 71);
  EXPECT_EQ(first.power_watts, 512.5);
  EXPECT_EQ(first.power_limit_watts, 700);
  EXPECT_EQ(first.sm_clock_mhz, 1755);
  EXPECT_EQ(first.memory_clock_mhz, 2600);
  EXPECT_EQ(first.pcie_receive_mib_per_second, 3);
  EXPECT_EQ(first.pcie_send_mib_per_second, 0.5);
  EXPECT_EQ(first.processes, 2);
  EXPECT_FALSE(first.nvlink_receive_mib_per_second) << "a rate needs two readings";
  EXPECT_EQ(nvml->memory_used_mib(1), 4096);

  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto before_second = Clock::now();
  const GpuReading second = nvml->read(1);
  const auto after_second = Clock::now();
  // 1 GiB was received and half of it sent, in a time that lies between these two.
  const double most = std::chrono::duration<double>(after_second - before_first).count();
  const double least = std::chrono::duration<double>(before_second - after_first).count();
  ASSERT_TRUE(second.nvlink_receive_mib_per_second);
  ASSERT_TRUE(second.nvlink_send_mib_per_second);
  EXPECT_GE(*second.nvlink_receive_mib_per_second, 1024 / most);
  EXPECT_LE(*second.nvlink_receive_mib_per_second, 1024 / least);
  EXPECT_GE(*second.nvlink_send_mib_per_second, 512 / most);
  EXPECT_LE(*second.nvlink_send_mib_per_second, 512 / least);

  const auto processes = nvml->processes(1);
  ASSERT_TRUE(processes);
  ASSERT_EQ(processes->size(), 2u);
  EXPECT_EQ((*processes)[0].pid, 77);
  EXPECT_EQ((*processes)[0].memory_mib, 10);
  EXPECT_FALSE((*processes)[1].memory_mib);
}

TEST(NvmlTest, WhatIsDeniedOrNotSupportedIsAbsentAndNotZero) {
  const StandInNvml stand_in("gpus 1\ndeny.processes 1\ndeny.power 1\nunsupported.nvlink 1\nunsupported.memory 1");
  const auto nvml = Nvml::open().nvml;
  ASSERT_NE(nvml, nullptr);
  nvml->read(0);
  const GpuReading reading = nvml->read(0);
  EXPECT_FALSE(reading.power_watts);
  EXPECT_FALSE(reading.processes);
  EXPECT_FALSE(reading.memory_used_mib);
  EXPECT_FALSE(reading.memory_total_mib);
  EXPECT_FALSE(reading.nvlink_send_mib_per_second);
  EXPECT_FALSE(nvml->processes(0));
  EXPECT_TRUE(reading.utilization_percent);
  EXPECT_TRUE(nvml->gpus()[0].fault.empty());
}

TEST(NvmlTest, AnOldDriverGivesWhatItHas) {
  const StandInNvml stand_in("gpus 1\ngpu0.process.5 100", StandInNvml::Driver::kOld);
  const auto [nvml, reason] = Nvml::open();
  ASSERT_NE(nvml, nullptr) << reason;
  const GpuReading reading = nvml->read(0);
  EXPECT_EQ(reading.memory_used_mib, 600) << "with what the driver keeps for itself";
  EXPECT_EQ(reading.temperature_celsius, 60);
  EXPECT_EQ(reading.processes, 1);
  EXPECT_FALSE(reading.pcie_receive_mib_per_second);
}

TEST(NvmlTest, AGpuThatFallsOffHasAFaultAndTheOthersGoOn) {
  const StandInNvml stand_in("gpus 3\ngpu1.lost_after 5\ngpu2.handle 4");
  const auto nvml = Nvml::open().nvml;
  ASSERT_NE(nvml, nullptr);
  const GpuReading half_read = nvml->read(1);
  EXPECT_FALSE(half_read.utilization_percent) << "of a GPU that went away while it was read";
  EXPECT_EQ(nvml->gpus()[1].fault, "GPU is lost");
  EXPECT_FALSE(nvml->read(1).utilization_percent);
  EXPECT_FALSE(nvml->processes(1));
  EXPECT_EQ(nvml->read(0).utilization_percent, 50);
  EXPECT_EQ(nvml->gpus()[2].fault, "Insufficient Permissions");
  EXPECT_EQ(nvml->gpus()[2].describe(), "GPU 2");
  EXPECT_FALSE(nvml->read(2).utilization_percent);
}

TEST(NvmlTest, AsksTheDriverNothingOnceItIsAbandoned) {
  const StandInNvml stand_in("gpus 1\ngpu0.lost_after 0");
  std::atomic<bool> is_abandoned{false};
  const auto nvml = Nvml::open(&is_abandoned).nvml;
  ASSERT_NE(nvml, nullptr);
  is_abandoned = true;
  EXPECT_FALSE(nvml->read(0).utilization_percent);
  EXPECT_FALSE(nvml->memory_used_mib(0));
  EXPECT_FALSE(nvml->processes(0));
  EXPECT_EQ(nvml->gpus()[0].fault, "") << "any call would have said that the GPU is lost";
}

TEST(NvmlTest, ListsAnyNumberOfProcesses) {
  std::string script = "gpus 1\n";
  for (int pid = 100; pid < 170; ++pid) script += "gpu0.process." + std::to_string(pid) + " 1\n";
  const StandInNvml stand_in(script);
  const auto nvml = Nvml::open().nvml;
  ASSERT_NE(nvml, nullptr);
  const auto processes = nvml->processes(0);
  ASSERT_TRUE(processes);
  EXPECT_EQ(processes->size(), 70u);
}

}  // namespace
}  // namespace levin
