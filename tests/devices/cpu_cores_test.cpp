#include <levin/core/devices/cpu_cores.h>

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace levin {
namespace {

/// A folder in the place of /, with files of proc and sys that a test writes.
class CpuCoresTest : public ::testing::Test {
 protected:
  CpuCoresTest()
      : root_(::testing::TempDir() + "levin_cpu_cores_" + std::to_string(getpid()) + "_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name()) {}
  ~CpuCoresTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void allow(const std::string& list) const {
    write("/proc/self/status",
          "Name:\tprogram\nCpus_allowed:\tff\nCpus_allowed_list:\t" + list + "\nMems_allowed:\t1\n");
  }
  /// `running`: threads of the host that want to run.
  void write_stat(const std::string& cores, int running) const {
    write("/proc/stat", "cpu  1 2 3 4 5 6 7 8\n" + cores + "procs_running " + std::to_string(running) + "\n");
  }
  CpuCores cores() const { return CpuCores(root_); }

  const std::string root_;
};

TEST_F(CpuCoresTest, AreThoseOfTheAffinityMask) {
  allow("0-3,8,10-11");
  EXPECT_EQ(cores().usable(), 7);
  allow("5");
  EXPECT_EQ(cores().usable(), 1);
}

TEST_F(CpuCoresTest, AreAllWhereNothingCanBeRead) {
  EXPECT_EQ(cores().usable(), std::max(1U, std::thread::hardware_concurrency()));
  EXPECT_EQ(cores().free(1000), cores().usable());
}

TEST_F(CpuCoresTest, AQuotaOfVersion2IsTheLeastOfTheGroupsAround) {
  allow("0-15");
  write("/proc/self/cgroup", "0::/pod/container\n");
  write("/sys/fs/cgroup/pod/container/cpu.max", "max 100000\n");
  EXPECT_EQ(cores().usable(), 16);
  write("/sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
  EXPECT_EQ(cores().usable(), 1.5);
  write("/sys/fs/cgroup/pod/container/cpu.max", "400000 100000\n");
  EXPECT_EQ(cores().usable(), 1.5);
}

TEST_F(CpuCoresTest, AQuotaInsideAContainer) {
  allow("0-15");
  write("/proc/self/cgroup", "0::/\n");
  write("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(cores().usable(), 2);
}

TEST_F(CpuCoresTest, AQuotaOfVersion1) {
  allow("0-15");
  write("/proc/self/cgroup", "9:name=systemd:/\n4:cpu,cpuacct:/docker/0123\n2:cpuset:/\n0::/\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(cores().usable(), 16);
  // The path is the one outside of the container, whose group is where the hierarchy begins.
  write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(cores().usable(), 2.5);
}

TEST_F(CpuCoresTest, FreeAtAGlanceWhereFewThreadsWantToRun) {
  allow("0-7");
  write_stat("cpu0 0 0 0 0 0 0 0 0\n", 3);
  // A second glance comes a tenth of a second after the first.
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(cores().free(5), 8);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(100));
}

TEST_F(CpuCoresTest, FreeAreThoseThatWereIdle) {
  // Columns: user, nice, system, idle, iowait, irq, softirq, steal. Core 2 is not this process'.
  const std::string before =
      "cpu  9 9 9 9 9 9 9 9\ncpu0 100 0 0 500 0 0 0 0\ncpu1 0 0 0 600 0 0 0 0\ncpu2 0 0 0 0 0 0 0 0\n";
  const std::string after =
      "cpu  9 9 9 9 9 9 9 9\ncpu0 200 0 0 500 0 0 0 0\ncpu1 0 0 20 660 20 0 0 0\ncpu2 0 0 0 99 0 0 0 0\n";
  EXPECT_DOUBLE_EQ(idle_cores(before, after, {0, 1}).value(), 0.8);
  EXPECT_DOUBLE_EQ(idle_cores(before, after, {0}).value(), 0);
  EXPECT_FALSE(idle_cores(before, before, {0, 1}));
  EXPECT_FALSE(idle_cores("", "", {0, 1}));
}

TEST_F(CpuCoresTest, WhatThisProcessUsesIsFree) {
  allow("0-1");
  // Two cores that were busy all the time, one of them with this process. What is looked at are pipes, so that this
  // process has computed for a while between the two looks.
  write_stat("", 9);
  const std::string stat = root_ + "/proc/stat";
  std::filesystem::remove(stat);
  ASSERT_EQ(mkfifo(stat.c_str(), 0600), 0);
  ASSERT_EQ(mkfifo((stat + ".second").c_str(), 0600), 0);
  std::thread own([&] {
    std::ofstream first(stat);  // opened once it is read
    std::filesystem::rename(stat + ".second", stat);
    first << "cpu0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0\nprocs_running 9\n";
    first.close();
    std::ofstream second(stat);
    const std::clock_t start = std::clock();
    while (std::clock() - start < CLOCKS_PER_SEC / 5) {
    }
    second << "cpu0 50 0 0 0 0 0 0 0\ncpu1 50 0 0 0 0 0 0 0\nprocs_running 9\n";
  });
  const double free = cores().free(1.5);
  own.join();
  EXPECT_GT(free, 0);
  EXPECT_LE(free, 1.1);
}

TEST_F(CpuCoresTest, ThisHostHasSome) {
  EXPECT_GT(CpuCores().usable(), 0);
  EXPECT_LE(CpuCores().free(1e9), CpuCores().usable());
  EXPECT_GE(CpuCores().free(1e9), 0);
}

}  // namespace
}  // namespace levin
