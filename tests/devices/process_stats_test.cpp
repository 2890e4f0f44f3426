#include <levin/core/devices/process_stats.h>

#include "../support/eventually.h"

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
  struct Moment {
    std::clock_t cpu = std::clock();
    std::chrono::steady_clock::time_point time = std::chrono::steady_clock::now();
  };
  ProcessStats stats;
  const Moment before_first;
  EXPECT_FALSE(stats.read_process().utilization_percent) << "a rate needs two readings";
  const Moment after_first;
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
    }
  });
  while (std::chrono::steady_clock::now() - after_first.time < std::chrono::milliseconds(300)) {
  }
  stop = true;
  other.join();
  const Moment before_second;
  const auto reading = stats.read_process();
  const Moment after_second;
  ASSERT_TRUE(reading.utilization_percent);
  // The time between the readings lies between these two, and what was spent in it as well.
  const auto percent = [](const Moment& cpu_from, const Moment& cpu_to, const Moment& from, const Moment& to) {
    const double spent = static_cast<double>(cpu_to.cpu - cpu_from.cpu) / CLOCKS_PER_SEC;
    return 100 * spent / std::chrono::duration<double>(to.time - from.time).count();
  };
  EXPECT_GE(*reading.utilization_percent, percent(after_first, before_second, before_first, after_second) - 15);
  EXPECT_LE(*reading.utilization_percent, percent(before_first, after_second, after_first, before_second) + 15);
}

TEST(ProcessStatsTest, MemoryIsThatOfNow) {
  ProcessStats stats;
  const auto before = stats.read_process();
  ASSERT_TRUE(before.resident_memory_mib && before.resident_memory_peak_mib);
  std::vector<char> block(100 << 20, 'x');
  const auto after = stats.read_process();
  EXPECT_GT(*after.resident_memory_mib, *before.resident_memory_mib + 80);
#ifndef LEVIN_SANITIZED  // they keep notes of the block, as large as itself
  EXPECT_LT(*after.resident_memory_mib, *before.resident_memory_mib + 140);
#endif
  EXPECT_GE(*after.resident_memory_peak_mib, *after.resident_memory_mib - 1);
  EXPECT_EQ(block.back(), 'x');
}

TEST(ProcessStatsTest, ThreadsAreThoseOfNow) {
  ProcessStats stats;
  const int64_t extra = 8;
  std::atomic<bool> stop{false};
  std::vector<std::thread> waiting;
  for (int64_t i = 0; i < extra; ++i)
    waiting.emplace_back([&] {
      while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  const auto with_them = stats.read_process().threads;
  ASSERT_TRUE(with_them);
  EXPECT_GT(*with_them, extra);
  stop = true;
  for (std::thread& thread : waiting) thread.join();
  // The kernel counts a thread a moment longer than join() waits for it.
  EXPECT_TRUE(testing::eventually([&] { return *stats.read_process().threads <= *with_them - extra; }));
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
  const std::clock_t start = std::clock();
  while (std::clock() - start < CLOCKS_PER_SEC / 5) {
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
