#include <tests/strategies/run_ranks.h>

#include <levin/core/interfaces/cluster_environment.h>
#include <levin/strategies/comm/rendezvous.h>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <vector>

namespace levin::testing {
namespace {

constexpr std::chrono::seconds kPatience{60};

void run_one(int64_t rank, const c10::intrusive_ptr<c10d::Store>& store, const RankMain& rank_main) {
  try {
    rank_main(rank, store);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << rank << " threw: " << error.what();
  }
}

void run_threads(int64_t count, const RankMain& rank_main) {
  const auto store = make_thread_store(kPatience);
  std::vector<std::thread> ranks;
  for (int64_t rank = 0; rank < count; ++rank) ranks.emplace_back([&, rank] { run_one(rank, store, rank_main); });
  for (auto& rank : ranks) rank.join();
}

/// The pool threads of the parent do not exist in the child; a fresh thread makes its own.
[[noreturn]] void run_child(int64_t rank, const ClusterPlace& place, const RankMain& rank_main) {
  std::thread([&] {
    try {
      run_one(rank, connect_store(place, kPatience), rank_main);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << " could not join: " << error.what();
    }
  }).join();
  std::fflush(nullptr);
  ::_exit(::testing::Test::HasFailure() ? 1 : 0);
}

void await_child(int64_t rank, pid_t child) {
  const auto deadline = std::chrono::steady_clock::now() + 2 * kPatience;
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      ADD_FAILURE() << "the process of rank " << rank << " did not end";
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank << " failed, status " << status;
}

void run_processes(int64_t count, const RankMain& rank_main) {
  // Served after the forks: a child has no use for the server's thread, and for what it may hold just then.
  ReservedPort reserved;
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int64_t rank = 0; rank < count; ++rank) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const ClusterPlace place{.rank = rank,
                               .world_size = count,
                               .local_rank = rank,
                               .local_world_size = count,
                               .main_port = reserved.port(),
                               .external_store = true,
                               .run_id = "test"};
      run_child(rank, place, rank_main);
    }
    children.push_back(child);
  }
  const ServedStore served = reserved.serve(kPatience);
  for (int64_t rank = 0; rank < count; ++rank) await_child(rank, children[static_cast<size_t>(rank)]);
}

}  // namespace

void run_ranks(RankKind kind, int64_t count, const RankMain& rank_main) {
  if (kind == RankKind::kThreads)
    run_threads(count, rank_main);
  else
    run_processes(count, rank_main);
}

std::string message_of(const std::function<void()>& attempt) {
  try {
    attempt();
  } catch (const std::exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

void expect_contains(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
  EXPECT_EQ(message.find("Exception raised from"), std::string::npos) << message;
}

}  // namespace levin::testing
