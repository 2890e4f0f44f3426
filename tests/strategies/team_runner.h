#pragma once

#include <levin/strategies/comm/shared_memory_backend.h>
#include <levin/strategies/comm/shared_memory_team.h>

#include <c10/util/intrusive_ptr.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace levin::team_testing {

enum class RankKind { kThreads, kProcesses };

/// What a test's rank has in its hands.
struct RankUnderTest {
  int64_t rank;
  int64_t ranks;
  std::shared_ptr<SharedMemoryTeam> team;
  c10::intrusive_ptr<c10d::Backend> backend;
};
using RankBody = std::function<void(RankUnderTest& self)>;

inline constexpr std::chrono::milliseconds kPatience{60000};

inline void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

/// A folder that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "levin_ranks_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make a temporary folder");
    path_ = pattern;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// The message of what `body` throws, or "".
inline std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

inline std::vector<std::string> run_threads(int64_t ranks, const std::function<void(int64_t rank)>& body) {
  std::vector<std::string> outcomes(ranks);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] { outcomes[rank] = message_of([&] { body(rank); }); });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

/// Every rank is a forked process in which the body runs on a fresh thread; one that hangs is ended after two minutes.
inline std::vector<std::string> run_processes(int64_t ranks, const std::function<void(int64_t rank)>& body) {
  const TemporaryFolder folder;
  const auto outcome_file = [&](int64_t rank) { return folder.file("outcome." + std::to_string(rank)); };
  std::vector<pid_t> children;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("cannot fork");
    if (child == 0) {
      alarm(120);
      std::string outcome;
      std::thread([&] { outcome = message_of([&] { body(rank); }); }).join();
      std::ofstream(outcome_file(rank)) << outcome;
      _exit(outcome.empty() ? 0 : 1);
    }
    children.push_back(child);
  }
  std::vector<std::string> outcomes;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    int status = 0;
    waitpid(children[rank], &status, 0);
    if (WIFSIGNALED(status)) {
      outcomes.push_back(fmt::format("ended by signal {}", WTERMSIG(status)));
    } else {
      std::ifstream file(outcome_file(rank));
      std::string outcome{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
      if (outcome.empty() && WEXITSTATUS(status) != 0) outcome = fmt::format("exit status {}", WEXITSTATUS(status));
      outcomes.push_back(outcome);
    }
  }
  return outcomes;
}

/// Runs the body on every rank of a team; returns, by rank, the message of what it threw or "".
inline std::vector<std::string> run_ranks(RankKind kind, int64_t ranks, const RankBody& body,
                                          std::chrono::milliseconds timeout = kPatience) {
  if (kind == RankKind::kThreads) {
    const auto team = make_thread_team(ranks);
    return run_threads(ranks, [&](int64_t rank) {
      RankUnderTest self{rank, ranks, team, make_shared_memory_backend(team, rank, timeout)};
      body(self);
    });
  }
  const TemporaryFolder folder;
  return run_processes(ranks, [&](int64_t rank) {
    auto store = c10::make_intrusive<c10d::FileStore>(folder.file("store"), static_cast<int>(ranks));
    const auto team = make_process_team(*store, rank, ranks, kPatience);
    RankUnderTest self{rank, ranks, team, make_shared_memory_backend(team, rank, timeout)};
    body(self);
  });
}

}  // namespace levin::team_testing
