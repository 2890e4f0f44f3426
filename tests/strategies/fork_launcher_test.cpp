#include <levin/strategies/launchers/fork_launcher.h>

#include <levin/core/base/error.h>
#include <levin/core/devices/cpu_cores.h>

#include "../support/self_program.h"
#include "launcher_support.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace levin {
namespace {

using testing::Board;
using testing::board_of_program;
using testing::environment_with;
using testing::eventually;
using testing::Folder;
using testing::FunctionProgram;
using testing::hang;
using testing::launch;
using testing::message_of;
using testing::SelfProgram;

constexpr std::chrono::milliseconds kShortGrace{200};

/// What holds after every call, whatever its result.
void expect_nothing_left() {
  EXPECT_TRUE(testing::has_no_children());
  EXPECT_FALSE(testing::has_outcome_folders(getpid()));
}

TEST(ForkLauncher, RanksAreProcessesAndTheOutcomeComesBack) {
  const Folder folder;
  const Board board(folder.path());
  int changed = 0;
  std::string outcome;
  std::string outcome_folder;
  FunctionProgram program([&](int64_t rank) {
    changed = 7;
    board.write_process("rank-" + std::to_string(rank));
    // All ranks are there at the same time.
    for (const char* other : {"rank-0", "rank-1", "rank-2"})
      if (!board.wait_for(other)) throw Error("test", std::string("there is no ") + other);
  });
  program.save = [&](const std::string& directory) { Board(directory).write("weights", std::to_string(changed)); };
  program.load = [&](const std::string& directory) {
    outcome_folder = directory;
    outcome = Board(directory).read("weights");
  };
  ForkLauncher launcher({.num_ranks = 3});
  launcher.launch(program);
  EXPECT_EQ(outcome, "7");
  EXPECT_EQ(changed, 0);
  EXPECT_FALSE(std::filesystem::exists(outcome_folder));
  for (const char* rank : {"rank-0", "rank-1", "rank-2"}) {
    EXPECT_NE(board.process(rank), getpid());
    EXPECT_TRUE(testing::is_gone(board.process(rank)));
  }
  expect_nothing_left();
}

TEST(ForkLauncher, OneRankStaysInThisProcess) {
  ForkLauncher launcher({.num_ranks = 1});
  pid_t process = 0;
  FunctionProgram program([&](int64_t) { process = getpid(); });
  program.save = program.load = [](const std::string&) { FAIL() << "there is nothing to bring back"; };
  launcher.launch(program);
  EXPECT_EQ(process, getpid());
}

TEST(ForkLauncher, ThreadPoolsStartedBeforeDoNotHangRanks) {
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  const auto work = [] {
    const at::Tensor weight = at::randn({256, 256}).requires_grad_();
    weight.mm(weight).relu().sum().backward();
    return std::isfinite(weight.grad().sum().item<float>());
  };
  ASSERT_TRUE(work());
  ForkLauncher launcher({.num_ranks = 2});
  // Again from another thread, and after it.
  for (int call = 0; call < 2; ++call) {
    std::thread([&] {
      launch(launcher, [&](int64_t) {
        at::set_num_threads(2);
        if (!work()) throw Error("test", "wrong result");
      });
    }).join();
    launch(launcher, [&](int64_t) {
      if (!work()) throw Error("test", "wrong result");
    });
  }
  ASSERT_TRUE(work());
  at::set_num_threads(before);
  expect_nothing_left();
}

TEST(ForkLauncher, RanksShareTheCores) {
  const testing::ScopedVariable none("OMP_NUM_THREADS", nullptr);
  const int share = std::max(1, static_cast<int>(CpuCores().usable()) / 2);
  const int before = at::get_num_threads();
  at::set_num_threads(share + 2);
  ForkLauncher launcher({.num_ranks = 2});
  launch(launcher, [&](int64_t) {
    if (at::get_num_threads() != share) throw Error("test", std::to_string(at::get_num_threads()) + " threads");
  });
  EXPECT_EQ(at::get_num_threads(), share + 2);
  at::set_num_threads(before);
}

TEST(ForkLauncher, ErrorsNameTheRank) {
  ForkLauncher launcher({.num_ranks = 2, .first_rank = 4});
  const auto fail_with = [&](auto error) {
    return [&launcher, error] {
      launch(launcher, [&](int64_t rank) {
        if (rank == 1) throw error;
        hang();
      });
    };
  };
  EXPECT_EQ(message_of<Error>(fail_with(Error("data", "no such file; hint: look"))),
            "[data] rank 5 failed: no such file; hint: look");
  EXPECT_EQ(message_of<ConfigError>(fail_with(ConfigError("wrong key"))), "[config] rank 5 failed: wrong key");
  EXPECT_EQ(message_of<std::out_of_range>(fail_with(std::out_of_range("far out"))), "[ranks] rank 5 failed: far out");
  EXPECT_EQ(message_of<Error>(fail_with(3)), "[ranks] rank 5 failed: an exception that is no std::exception");
  EXPECT_EQ(message_of<InternalError>(fail_with(InternalError("broken"))), "[ranks] rank 5 failed: broken");
  EXPECT_EQ(message_of<c10::ValueError>(fail_with(c10::ValueError("no value", nullptr))),
            "[ranks] rank 5 failed: no value");
  EXPECT_EQ(message_of<c10::Error>(fail_with(c10::AcceleratorError({"f", "file", 1}, 2, "no device"))),
            "[ranks] rank 5 failed: no device");
  EXPECT_EQ(message_of<Error>(fail_with(std::bad_alloc())), "[ranks] rank 5 failed: std::bad_alloc");
  const std::string longer(300000, 'x');
  EXPECT_EQ(message_of<std::runtime_error>(fail_with(std::runtime_error(longer))), "[ranks] rank 5 failed: " + longer);
  expect_nothing_left();
}

TEST(ForkLauncher, AFailingSaveIsAnErrorOfRankZero) {
  ForkLauncher launcher({.num_ranks = 2});
  FunctionProgram program([](int64_t) {});
  program.save = [](const std::string&) { throw Error("files", "the disk is full"); };
  EXPECT_EQ(message_of<Error>([&] { launcher.launch(program); }), "[files] rank 0 failed: the disk is full");
  expect_nothing_left();
}

TEST(ForkLauncher, TheFirstErrorIsTheError) {
  const Folder folder;
  const Board board(folder.path());
  ForkLauncher launcher({.num_ranks = 3});
  const auto run = [&](int64_t rank) {
    if (rank == 2) {
      board.write_process("failing");
      throw Error("test", "first");
    }
    // An error later on is dropped: the parent knows of the first, since nobody else fetches its rank.
    signal(SIGTERM, SIG_IGN);
    const pid_t failing = board.process("failing");
    eventually([&] { return kill(failing, 0) != 0; });
    throw Error("test", "later");
  };
  EXPECT_EQ(message_of<Error>([&] { launch(launcher, run); }), "[test] rank 2 failed: first");
  expect_nothing_left();
}

TEST(ForkLauncher, AConsequenceThatComesFirstIsNotTheError) {
  const Folder folder;
  const Board board(folder.path());
  ForkLauncher launcher({.num_ranks = 2, .is_consequence = [](const std::exception_ptr& error) {
                           try {
                             std::rethrow_exception(error);
                           } catch (const std::runtime_error& aborted) {
                             return std::string(aborted.what()) == "aborted";
                           }
                         }});
  const auto run = [&](int64_t rank) {
    if (rank == 0) throw std::runtime_error("aborted");
    // Rank 0 has ended, and its parent knows it, since nobody else fetches it.
    const pid_t first = board.process("rank-0");
    eventually([&] { return kill(first, 0) != 0; });
    throw Error("test", "the cause");
  };
  const auto run_and_tell = [&](int64_t rank) {
    board.write_process("rank-" + std::to_string(rank));
    run(rank);
  };
  EXPECT_EQ(message_of<Error>([&] { launch(launcher, run_and_tell); }), "[test] rank 1 failed: the cause");
  const auto no_cause = [](int64_t rank) {
    if (rank == 1) throw std::runtime_error("aborted");
  };
  EXPECT_EQ(message_of<std::runtime_error>([&] { launch(launcher, no_cause); }), "[ranks] rank 1 failed: aborted");
  expect_nothing_left();
}

TEST(ForkLauncher, AKilledRankEndsTheOthers) {
  const Folder folder;
  const Board board(folder.path());
  ForkLauncher launcher({.num_ranks = 3});
  const auto run = [&](int64_t rank) {
    board.write_process("rank-" + std::to_string(rank));
    hang();
  };
  std::thread killer([&] {
    for (const char* rank : {"rank-0", "rank-1", "rank-2"}) EXPECT_TRUE(board.wait_for(rank));
    kill(board.process("rank-1"), SIGKILL);
  });
  EXPECT_EQ(message_of<Error>([&] { launch(launcher, run); }),
            "[ranks] rank 1 was ended by signal 9 (Killed); hint: when nobody sent the signal, memory ran out (`dmesg` "
            "then names the process)");
  killer.join();
  for (const char* rank : {"rank-0", "rank-1", "rank-2"}) EXPECT_TRUE(testing::is_gone(board.process(rank)));
  expect_nothing_left();
}

TEST(ForkLauncher, ADeathWinsOverTheErrorsThatItCauses) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    // A rank that dies breaks its connections; the other fails at once, and may report before the death is noticed.
    int connection[2];
    int go[2];
    ASSERT_EQ(pipe(connection), 0);
    ASSERT_EQ(pipe(go), 0);
    ForkLauncher launcher({.num_ranks = 2});
    const auto run = [&](int64_t rank) {
      char byte;
      if (rank == 1) {
        EXPECT_EQ(read(go[0], &byte, 1), 1);
        raise(SIGKILL);
      }
      close(connection[1]);
      if (read(connection[0], &byte, 1) == 0) throw std::runtime_error("connection closed by peer");
    };
    std::thread closer([&] {
      // The parent must not hold the connection when the rank dies.
      EXPECT_TRUE(eventually([] {
        std::ifstream children("/proc/self/task/" + std::to_string(getpid()) + "/children");
        return std::distance(std::istream_iterator<int>(children), std::istream_iterator<int>()) == 2;
      }));
      close(connection[1]);
      EXPECT_EQ(write(go[1], "", 1), 1);
    });
    const std::string message = message_of<Error>([&] { launch(launcher, run); });
    closer.join();
    for (const int end : {connection[0], go[0], go[1]}) close(end);
    EXPECT_TRUE(message.starts_with("[ranks] rank 1 was ended by signal 9 (Killed)")) << message;
  }
}

TEST(ForkLauncher, ARankThatLeavesIsAnError) {
  ForkLauncher launcher({.num_ranks = 2});
  const auto run = [&](int64_t rank) {
    if (rank == 1) _exit(0);
    hang();
  };
  EXPECT_EQ(message_of<Error>([&] { launch(launcher, run); }),
            "[ranks] rank 1 ended with status 0 before its work was done");
  expect_nothing_left();
}

TEST(ForkLauncher, ARankThatDoesNotEndIsKilled) {
  const Folder folder;
  const Board board(folder.path());
  ForkLauncher launcher({.num_ranks = 2, .grace = kShortGrace});
  const auto run = [&](int64_t rank) {
    if (rank == 0) {
      signal(SIGTERM, SIG_IGN);
      board.write_process("stubborn");
      hang();
    }
    board.wait_for("stubborn");
    throw Error("test", "the cause");
  };
  EXPECT_EQ(message_of<Error>([&] { launch(launcher, run); }), "[test] rank 1 failed: the cause");
  EXPECT_TRUE(testing::is_gone(board.process("stubborn")));
  expect_nothing_left();
}

TEST(ForkLauncher, ARankThatStaysStoppedIsKilled) {
  ForkLauncher launcher({.num_ranks = 2, .stopped_limit = kShortGrace});
  const auto run = [](int64_t rank) {
    if (rank == 1) raise(SIGSTOP);
  };
  EXPECT_EQ(message_of<Error>([&] { launch(launcher, run); }),
            "[ranks] rank 1 was killed: it had been stopped for 0.2 s");
  expect_nothing_left();
}

TEST(ForkLauncher, ARankThatIsContinuedGoesOn) {
  // Where the limit is short, it may come late that the rank is continued.
  EXPECT_TRUE(testing::with_time_enough([](std::chrono::seconds limit) {
    const Folder folder;
    const Board board(folder.path());
    ForkLauncher launcher({.num_ranks = 2, .stopped_limit = limit});
    const auto run = [&](int64_t rank) {
      if (rank == 1) {
        board.write_process("stopped");
        for (int stop = 0; stop < 10; ++stop) raise(SIGSTOP);
        board.write("done", "");
      } else if (board.wait_for("stopped")) {
        const pid_t stopped = board.process("stopped");
        while (!board.has("done") && !testing::is_gone(stopped)) {
          kill(stopped, SIGCONT);
          std::this_thread::sleep_for(std::chrono::milliseconds(limit) / 5);
        }
      }
    };
    try {
      launch(launcher, run);
    } catch (const Error&) {
      return false;
    }
    return true;
  }));
  expect_nothing_left();
}

TEST(ForkLauncher, SurvivesAProgramThatIgnoresItsChildren) {
  const auto before = signal(SIGCHLD, SIG_IGN);
  ForkLauncher launcher({.num_ranks = 2});
  launch(launcher, [](int64_t) {});
  const auto fail = [](int64_t rank) {
    if (rank == 1) raise(SIGKILL);
    hang();
  };
  EXPECT_EQ(message_of<Error>([&] { launch(launcher, fail); }),
            "[ranks] rank 1 ended in an unknown way (this program ignores SIGCHLD) before its work was done");
  signal(SIGCHLD, before);
}

TEST(ForkLauncher, RefusesToForkAfterADriverHasStarted) {
  ForkLauncher launcher({.num_ranks = 2, .started_accelerator = [] { return "cuda"; }});
  const std::string message = message_of<Error>([&] { launch(launcher, [](int64_t) {}); });
  EXPECT_TRUE(message.starts_with("[ranks] cannot fork 2 ranks: the driver of 'cuda' has been started in this process"))
      << message;
  EXPECT_NE(message.find("hint: use strategy ddp or ddp_threads"), std::string::npos) << message;
}

TEST(ForkLauncher, AskingForADriverDoesNotStartIt) {
  EXPECT_EQ(started_accelerator(), "");
  EXPECT_EQ(started_accelerator(), "");
}

TEST(ForkLauncher, AStartThatFailsHalfwayLeavesNothing) {
  // Descriptors for the lifeline and some ranks.
  const int next = dup(STDIN_FILENO);
  close(next);
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{.rlim_cur = static_cast<rlim_t>(next) + 6, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  ForkLauncher launcher({.num_ranks = 16});
  const std::string message = message_of<Error>([&] { launch(launcher, [](int64_t) { hang(); }); });
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(message.starts_with("[process] cannot make a pipe: Too many open files")) << message;
  expect_nothing_left();
}

// ---- Whole programs.

const SelfProgram printing("fork_printing", [] {
  std::ios::sync_with_stdio(false);
  std::atexit([] { std::printf("atexit\n"); });
  std::cout << "from std::cout before\n";
  std::printf("from printf before\n");
  ForkLauncher launcher({.num_ranks = 2});
  launch(launcher, [](int64_t rank) {
    std::cout << "from std::cout in rank " << rank << "\n";
    std::printf("from printf in rank %d\n", static_cast<int>(rank));
  });
  std::cout << "from std::cout after" << std::endl;
  return 0;
});

TEST(ForkLauncherProgram, OutputIsWrittenOnce) {
  const auto result = printing.run();
  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* line :
       {"from std::cout before\n", "from printf before\n", "from std::cout in rank 0\n", "from std::cout in rank 1\n",
        "from printf in rank 0\n", "from printf in rank 1\n", "from std::cout after\n", "atexit\n"}) {
    const size_t first = result.out.find(line);
    EXPECT_NE(first, std::string::npos) << line << "in\n" << result.out;
    EXPECT_EQ(result.out.find(line, first + 1), std::string::npos) << line << "in\n" << result.out;
  }
}

const SelfProgram endless("fork_endless", [] {
  const Board board = board_of_program();
  board.write_process("parent");
  ForkLauncher launcher({.num_ranks = 3});
  FunctionProgram program([&](int64_t rank) {
    if (rank != 0) {
      board.write_process("rank-" + std::to_string(rank));
      hang();
    }
  });
  // Rank 0 is writing the outcome, over and over.
  program.save = [&](const std::string& directory) {
    board.write("outcome", directory);
    board.write_process("rank-0");
    for (int i = 0;; ++i) std::ofstream(directory + "/part-" + std::to_string(i % 100)) << "weights";
  };
  launcher.launch(program);
  return 0;
});

TEST(ForkLauncherProgram, DeathOfTheParentEndsItsRanks) {
  const Folder folder;
  const Board board(folder.path());
  testing::RunningProgram program(endless.words(), endless.options(environment_with(folder)));
  std::vector<pid_t> ranks;
  for (const char* rank : {"rank-0", "rank-1", "rank-2"}) ranks.push_back(board.process(rank));
  ASSERT_TRUE(std::filesystem::exists(board.read("outcome")));
  program.send(SIGKILL);
  EXPECT_EQ(program.wait().signal, SIGKILL);
  for (const pid_t rank : ranks) EXPECT_TRUE(eventually([&] { return testing::is_gone(rank); }));
  EXPECT_FALSE(std::filesystem::exists(board.read("outcome")));
}

TEST(ForkLauncherProgram, AnUnhandledSignalEndsParentAndRanks) {
  const Folder folder;
  const Board board(folder.path());
  testing::RunningProgram program(endless.words(), endless.options(environment_with(folder)));
  std::vector<pid_t> ranks;
  for (const char* rank : {"rank-0", "rank-1", "rank-2"}) ranks.push_back(board.process(rank));
  program.send(SIGTERM);
  EXPECT_EQ(program.wait().signal, SIGTERM);
  for (const pid_t rank : ranks) EXPECT_TRUE(eventually([&] { return testing::is_gone(rank); }));
  EXPECT_FALSE(std::filesystem::exists(board.read("outcome")));
}

std::atomic<int> signals_seen{0};

/// Handles signals as a training does: the first asks for a clean end.
const SelfProgram polite("fork_polite", [] {
  setpgid(0, 0);
  struct sigaction action {};
  action.sa_handler = [](int) { ++signals_seen; };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  const Board board = board_of_program();
  board.write_process("parent");
  ForkLauncher launcher({.num_ranks = 2});
  launch(launcher, [&](int64_t rank) {
    board.write_process("rank-" + std::to_string(rank));
    if (!eventually([] { return signals_seen > 0; })) throw Error("test", "no signal came");
    // Time for a signal that comes twice.
    board.wait_for("checked");
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    board.write("signals-of-rank-" + std::to_string(rank), std::to_string(signals_seen));
  });
  board.write("signals-of-parent", std::to_string(signals_seen));
  struct sigaction present {};
  sigaction(SIGTERM, nullptr, &present);
  return present.sa_handler == action.sa_handler ? 0 : 2;
});

class ForkLauncherSignal : public ::testing::TestWithParam<std::pair<int, bool>> {};

TEST_P(ForkLauncherSignal, ReachesEachRankOnceAndAllEndByThemselves) {
  const auto [signal, to_group] = GetParam();
  const Folder folder;
  const Board board(folder.path());
  testing::RunningProgram program(polite.words(), polite.options(environment_with(folder)));
  const pid_t parent = board.process("parent");
  for (const char* rank : {"rank-0", "rank-1"}) EXPECT_TRUE(board.wait_for(rank));
  kill(to_group ? -parent : parent, signal);
  board.write("checked", "");
  const auto result = program.wait();
  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* process : {"parent", "rank-0", "rank-1"})
    EXPECT_EQ(board.read(std::string("signals-of-") + process), "1") << process;
}

INSTANTIATE_TEST_SUITE_P(AloneOrWithTheGroup, ForkLauncherSignal,
                         ::testing::Values(std::pair(SIGTERM, false), std::pair(SIGTERM, true),
                                           std::pair(SIGINT, false), std::pair(SIGINT, true)));

}  // namespace
}  // namespace levin
