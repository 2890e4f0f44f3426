#include <levin/strategies/launchers/thread_launcher.h>

#include <levin/core/base/error.h>
#include <levin/core/devices/cpu_cores.h>
#include <levin/strategies/launchers/in_process_launcher.h>

#include "launcher_support.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace levin {
namespace {

using testing::eventually;
using testing::launch;
using testing::ScopedVariable;

std::string thread_name() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return name;
}

/// What ranks wait in until one of them has failed.
struct Meeting {
  std::atomic<bool> aborted{false};

  void wait_for_ever() const {
    EXPECT_TRUE(eventually([&] { return aborted.load(); }));
    throw Error("comm", "the collective was aborted");
  }
};

bool is_aborted_collective(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& aborted) {
    return aborted.component() == "comm";
  } catch (...) {
    return false;
  }
}

TEST(InProcessLauncher, RunsTheRankItWasMadeFor) {
  std::vector<int64_t> ranks;
  InProcessLauncher first;
  InProcessLauncher third(2);
  launch(first, [&](int64_t rank) { ranks.push_back(rank); });
  launch(third, [&](int64_t rank) { ranks.push_back(rank); });
  EXPECT_EQ(ranks, (std::vector<int64_t>{0, 2}));
}

TEST(ThreadLauncher, RunsAllRanksAtOnceOnThreadsOfTheirOwn) {
  constexpr int kRanks = 4;
  ThreadLauncher launcher({.num_ranks = kRanks});
  std::barrier together(kRanks);
  std::vector<std::thread::id> threads(kRanks);
  std::vector<std::string> names(kRanks);
  launch(launcher, [&](int64_t rank) {
    together.arrive_and_wait();
    threads.at(static_cast<size_t>(rank)) = std::this_thread::get_id();
    names.at(static_cast<size_t>(rank)) = thread_name();
  });
  EXPECT_EQ(std::set(threads.begin(), threads.end()).size(), kRanks);
  EXPECT_EQ(threads[0], std::this_thread::get_id());
  EXPECT_EQ(names[1], "levin-rank-1");
  EXPECT_EQ(names[3], "levin-rank-3");
  EXPECT_EQ(names[0], thread_name());
}

TEST(ThreadLauncher, AnyThreadMayCallAndCallAgain) {
  ThreadLauncher launcher({.num_ranks = 3});
  std::atomic<int> runs{0};
  std::thread([&] {
    for (int call = 0; call < 20; ++call) launch(launcher, [&](int64_t) { ++runs; });
  }).join();
  EXPECT_EQ(runs, 60);
}

TEST(ThreadLauncher, OneRankNeedsNoThread) {
  ThreadLauncher launcher({.num_ranks = 1});
  std::thread::id thread;
  const auto run = [&](int64_t) {
    thread = std::this_thread::get_id();
    throw std::out_of_range("far out");
  };
  EXPECT_EQ(testing::message_of<std::out_of_range>([&] { launch(launcher, run); }), "far out");
  EXPECT_EQ(thread, std::this_thread::get_id());
}

TEST(ThreadLauncher, ThrowsTheFirstErrorAsItIs) {
  struct OutOfPaper : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  for (int64_t failing = 0; failing < 3; ++failing) {
    Meeting meeting;
    std::vector<int64_t> told;
    ThreadLauncher launcher({.num_ranks = 3, .on_error = [&](int64_t rank, const std::exception_ptr&) {
                               told.push_back(rank);
                               meeting.aborted = true;
                             }});
    const auto run = [&](int64_t rank) {
      if (rank == failing) throw OutOfPaper("rank " + std::to_string(rank));
      meeting.wait_for_ever();
    };
    EXPECT_EQ(testing::message_of<OutOfPaper>([&] { launch(launcher, run); }), "rank " + std::to_string(failing));
    EXPECT_EQ(told, std::vector<int64_t>{failing});
  }
}

TEST(ThreadLauncher, AConsequenceThatComesFirstIsNotTheError) {
  Meeting meeting;
  std::atomic<bool> noticed{false};
  ThreadLauncher launcher({.num_ranks = 3,
                           .on_error = [&](int64_t, const std::exception_ptr&) { noticed = true; },
                           .is_consequence = is_aborted_collective});
  // Rank 2 breaks the collective, and is slow to throw its own error.
  const auto run = [&](int64_t rank) {
    if (rank != 2) meeting.wait_for_ever();
    meeting.aborted = true;
    EXPECT_TRUE(eventually([&] { return noticed.load(); }));
    throw std::invalid_argument("the cause");
  };
  EXPECT_EQ(testing::message_of<std::invalid_argument>([&] { launch(launcher, run); }), "the cause");
}

TEST(ThreadLauncher, AConsequenceWithoutACauseIsTheError) {
  ThreadLauncher launcher({.num_ranks = 2, .is_consequence = is_aborted_collective});
  const auto run = [&](int64_t rank) {
    if (rank == 1) throw Error("comm", "the peer has gone");
  };
  EXPECT_EQ(testing::message_of<Error>([&] { launch(launcher, run); }), "[comm] the peer has gone");
}

TEST(ThreadLauncher, RanksShareTheCores) {
  const ScopedVariable none("OMP_NUM_THREADS", nullptr);
  const int before = at::get_num_threads();
  constexpr int kRanks = 2;
  const int share = std::max(1, static_cast<int>(CpuCores().usable()) / kRanks);
  at::set_num_threads(share + 2);
  ThreadLauncher launcher({.num_ranks = kRanks});
  std::vector<int> threads(kRanks);
  std::vector<int> threads_of_helper(kRanks);
  launch(launcher, [&](int64_t rank) {
    threads.at(static_cast<size_t>(rank)) = at::get_num_threads();
    std::thread([&] { threads_of_helper.at(static_cast<size_t>(rank)) = at::get_num_threads(); }).join();
  });
  EXPECT_EQ(threads, (std::vector<int>{share, share}));
  EXPECT_EQ(threads_of_helper, (std::vector<int>{share, share}));
  EXPECT_EQ(at::get_num_threads(), share + 2);
  at::set_num_threads(before);
}

TEST(ThreadLauncher, TheUsersNumberOfThreadsStays) {
  const ScopedVariable given("OMP_NUM_THREADS", "3");
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  ThreadLauncher launcher({.num_ranks = 2});
  std::vector<int> threads(2);
  launch(launcher, [&](int64_t rank) { threads.at(static_cast<size_t>(rank)) = at::get_num_threads(); });
  EXPECT_EQ(threads, (std::vector<int>{3, 3}));
  at::set_num_threads(before);
}

TEST(ThreadLauncher, SignalsReachTheCallingThread) {
  static std::atomic<pthread_t> handled_by;
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { handled_by = pthread_self(); };
  sigaction(SIGTERM, &action, &before);
  ThreadLauncher launcher({.num_ranks = 4});
  std::atomic<int> waiting{0};
  launch(launcher, [&](int64_t rank) {
    if (rank == 0) {
      // All other ranks could take it by now.
      EXPECT_TRUE(eventually([&] { return waiting.load() == 3; }));
      kill(getpid(), SIGTERM);
    } else {
      ++waiting;
    }
    EXPECT_TRUE(eventually([&] { return handled_by.load() != pthread_t{}; }));
  });
  sigaction(SIGTERM, &before, nullptr);
  EXPECT_EQ(handled_by.load(), pthread_self());
}

}  // namespace
}  // namespace levin
