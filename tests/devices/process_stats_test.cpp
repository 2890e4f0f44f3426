#include <levin/core/devices/process_stats.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <thread>
#include <vector>

namespace levin {
namespace {

TEST(ProcessStatsTest, UtilizationIsTheCpuTimeOfAllThreads) {
  ProcessStats stats;
  EXPECT_FALSE(stats.read_process().utilization_percent) << "a rate needs two readings";
  const std::clock_t before = std::clock();
  const auto start = std::chrono::steady_clock::now();
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
    }
  });
  while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(300)) {
  }
  stop = true;
  other.join();
  const auto reading = stats.read_process();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double spent = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  ASSERT_TRUE(reading.utilization_percent);
  EXPECT_NEAR(*reading.utilization_percent, 100 * spent / seconds, 15);
}

TEST(ProcessStatsTest, MemoryAndThreadsAreThoseOfNow) {
  ProcessStats stats;
  const auto before = stats.read_process();
  ASSERT_TRUE(before.resident_memory_mib && before.resident_memory_peak_mib && before.threads);
  std::atomic<bool> stop{false};
  std::thread waiting([&] {
    while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  std::vector<char> block(100 << 20, 'x');
  const auto after = stats.read_process();
  stop = true;
  waiting.join();
  EXPECT_GT(*after.resident_memory_mib, *before.resident_memory_mib + 80);
#ifndef LEVIN_SANITIZED  // they keep notes of the block, as large as itself
  EXPECT_LT(*after.resident_memory_mib, *before.resident_memory_mib + 140);
#endif
  EXPECT_GE(*after.resident_memory_peak_mib, *after.resident_memory_mib - 1);
  EXPECT_EQ(*after.threads, *before.threads + 1);
  EXPECT_EQ(block.back(), 'x');
}

TEST(ProcessStatsTest, BytesToStorageAreReadWhereTheKernelTellsThem) {
  const bool is_told = static_cast<bool>(std::ifstream("/proc/self/io"));
  ProcessStats stats;
  EXPECT_FALSE(stats.read_process().read_mib_per_second);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto reading = stats.read_process();
  EXPECT_EQ(reading.read_mib_per_second.has_value(), is_told);
  EXPECT_EQ(reading.written_mib_per_second.has_value(), is_told);
  EXPECT_GE(reading.written_mib_per_second.value_or(0), 0);
}

TEST(ProcessStatsTest, TheHostIsBetweenIdleAndBusy) {
  ProcessStats stats;
  EXPECT_FALSE(stats.read_host().utilization_percent);
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(200)) {
  }
  const HostReading reading = stats.read_host();
  ASSERT_TRUE(reading.utilization_percent);
  EXPECT_GT(*reading.utilization_percent, 0) << "this test computes";
  EXPECT_LE(*reading.utilization_percent, 100);
  ASSERT_TRUE(reading.available_memory_mib);
  EXPECT_GT(*reading.available_memory_mib, 1);
}

}  // namespace
}  // namespace levin
