#include <levin/strategies/launchers/subprocess_launcher.h>

#include <levin/core/base/error.h>
#include <levin/core/base/lifeline.h>
#include <levin/core/base/process_end.h>
#include <levin/core/devices/cpu_cores.h>
#include <levin/strategies/launchers/in_process_launcher.h>
#include <levin/strategies/launchers/local_ranks.h>

#include "../support/self_program.h"
#include "launcher_support.h"

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
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
using testing::hang;
using testing::launch;
using testing::SelfProgram;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "(none)" : value;
}

bool was_started_as_rank() { return std::getenv("LEVIN_LOCAL_RANK") != nullptr; }

/// The launcher that a strategy whose ranks are processes would use in this process.
std::unique_ptr<Launcher> make_launcher(
    int64_t num_ranks, std::function<void(int64_t rank, const std::string& description)> on_death = {}) {
  watch_lifeline();
  if (was_started_as_rank()) return std::make_unique<InProcessLauncher>(std::atoi(std::getenv("LEVIN_LOCAL_RANK")));
  const ClusterPlace place{.rank = 4,
                           .world_size = 4 + num_ranks,
                           .local_world_size = num_ranks,
                           .node_rank = 2,
                           .main_address = "host-0",
                           .main_port = 1234,
                           .run_id = "run-7"};
  return std::make_unique<SubprocessLauncher>(
      SubprocessLauncherOptions{.place = place, .on_end = [on_death](int64_t rank, const ProcessEnd& how) {
                                  if (on_death && how.failed()) on_death(rank, how.describe());
                                  return false;
                                }});
}

/// Waits until a number of ranks have come to the same place.
void meet(const std::string& place, int64_t rank, int64_t num_ranks) {
  board_of_program().write(place + "-" + std::to_string(rank), "");
  for (int64_t other = 0; other < num_ranks; ++other)
    if (!board_of_program().wait_for(place + "-" + std::to_string(other)))
      throw Error("test", "rank " + std::to_string(other) + " did not come to " + place);
}

/// As a program's main function does.
int report_errors(const std::function<void()>& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

void write_process(int64_t rank) { board_of_program().write_process("process-" + std::to_string(rank)); }

// ---- Ranks run the same program, once, through all calls.

const SelfProgram three_calls("subprocess_three_calls", [] {
  return report_errors([] {
    const auto launcher = make_launcher(3);
    int64_t calls = 0;
    for (const char* call : {"fit", "test"}) {
      launch(*launcher, [&](int64_t rank) {
        ++calls;
        meet(call, rank, 3);
        board_of_program().write(std::string(call) + "-process-" + std::to_string(rank), std::to_string(getpid()));
      });
    }
    // Another trainer.
    launch(*make_launcher(3), [&](int64_t rank) {
      ++calls;
      meet("second-fit", rank, 3);
      std::string words;
      for (const char* name :
           {"LEVIN_RANK", "LEVIN_WORLD_SIZE", "LEVIN_LOCAL_RANK", "LEVIN_LOCAL_WORLD_SIZE", "LEVIN_NODE_RANK",
            "LEVIN_MAIN_ADDRESS", "LEVIN_MAIN_PORT", "LEVIN_RUN_ID", "OMP_NUM_THREADS"})
        words += variable(name) + " ";
      board_of_program().write("environment-" + std::to_string(rank), words + std::to_string(calls));
      board_of_program().write("input-" + std::to_string(rank),
                               std::filesystem::read_symlink("/proc/self/fd/0").string());
      board_of_program().write("folder-" + std::to_string(rank), std::filesystem::current_path().string());
      board_of_program().write("command-" + std::to_string(rank), testing::read_text("/proc/self/cmdline"));
    });
    std::puts(was_started_as_rank() ? "the end of a rank" : "the end of the program");
  });
});

TEST(SubprocessLauncher, RanksAreThisProgramThroughoutItsCalls) {
  const Folder folder;
  const Folder working_folder;
  const Board board(folder.path());
  auto options = three_calls.options(environment_with(folder));
  options.environment["OMP_NUM_THREADS"] = "3";
  options.folder = working_folder.path();
  auto words = three_calls.words();
  words.insert(words.end(), {"a word", "", "--option=x y"});
  const auto result = testing::run_program(words, options);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err, "");

  EXPECT_EQ(board.read("environment-1"), "5 7 1 3 2 host-0 1234 run-7 3 3");
  EXPECT_EQ(board.read("environment-2"), "6 7 2 3 2 host-0 1234 run-7 3 3");
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_EQ(board.read(std::string("fit-process-") + rank), board.read(std::string("test-process-") + rank));
    EXPECT_EQ(board.read(std::string("folder-") + rank), std::filesystem::canonical(working_folder.path()));
    EXPECT_EQ(board.read(std::string("command-") + rank), board.read("command-0"));
  }
  EXPECT_NE(board.read("command-0").find(std::string("a word\0\0--option=x y\0", 21)), std::string::npos);
  EXPECT_EQ(board.read("input-1"), "/dev/null");

  // Output is inherited.
  size_t ranks = 0;
  for (size_t at = 0; (at = result.out.find("the end of a rank\n", at)) != std::string::npos; ++at) ++ranks;
  EXPECT_EQ(ranks, 2);
  EXPECT_NE(result.out.find("the end of the program\n"), std::string::npos);
}

TEST(SubprocessLauncher, RanksShareTheCoresUnlessTheUserSays) {
  const testing::ScopedVariable none("OMP_NUM_THREADS", nullptr);
  const Folder folder;
  EXPECT_EQ(three_calls.run(environment_with(folder)).status, 0);
  const auto share = std::max(1, static_cast<int>(CpuCores().usable()) / 3);
  EXPECT_EQ(Board(folder.path()).read("environment-1"), "5 7 1 3 2 host-0 1234 run-7 " + std::to_string(share) + " 3");
}

const SelfProgram other_number("subprocess_other_number", [] {
  return report_errors([] {
    launch(*make_launcher(2), [](int64_t rank) { meet("fit", rank, 2); });
    if (!was_started_as_rank()) launch(*make_launcher(4), [](int64_t) { std::puts("must not run"); });
  });
});

TEST(SubprocessLauncher, TheNumberOfRanksCannotChange) {
  const Folder folder;
  const auto result = other_number.run(environment_with(folder));
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(
      result.err.find("[ranks] this program runs as 2 local rank(s) since its first call of a trainer, and cannot "
                      "change to 4; hint: "),
      std::string::npos)
      << result.err;
  EXPECT_EQ(result.out.find("must not run"), std::string::npos);
}

const SelfProgram alone("subprocess_alone", [] {
  return report_errors([] {
    launch(*make_launcher(1), [](int64_t rank) {
      if (rank != 0 || !testing::has_no_children()) throw Error("test", "there is another process");
      throw std::out_of_range("far out");
    });
  });
});

TEST(SubprocessLauncher, OneRankNeedsNoProcess) {
  const auto result = alone.run();
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.err, "far out\n");
}

const SelfProgram removed("subprocess_removed", [] {
  return report_errors([] {
    std::filesystem::remove(std::filesystem::read_symlink("/proc/self/exe"));
    launch(*make_launcher(2), [](int64_t rank) { meet("fit", rank, 2); });
  });
});

TEST(SubprocessLauncher, AProgramWhoseFileIsGoneStartsItsRanks) {
  const Folder folder;
  const std::string copy = folder.path() + "/program";
  std::filesystem::copy_file(removed.words().front(), copy);
  const auto result = testing::run_program({copy}, removed.options(environment_with(folder)));
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_FALSE(std::filesystem::exists(copy));
}

// ---- Ranks that die.

const SelfProgram killed_rank("subprocess_killed_rank", [] {
  return report_errors([] {
    LocalRanks::instance().set_patience(std::chrono::minutes(1), std::chrono::seconds(1));
    std::atomic<bool> aborted{false};
    const auto launcher = make_launcher(3, [&](int64_t rank, const std::string& description) {
      board_of_program().write("death", std::to_string(rank) + " " + description);
      aborted = true;
    });
    launch(*launcher, [&](int64_t rank) {
      write_process(rank);
      meet("fit", rank, 3);
      if (rank != 0) hang();
      eventually([&] { return aborted.load(); });
      throw std::runtime_error("the collective was aborted");
    });
  });
});

TEST(SubprocessLauncherDeath, AKilledRankIsTheError) {
  const Folder folder;
  const Board board(folder.path());
  testing::RunningProgram program(killed_rank.words(), killed_rank.options(environment_with(folder)));
  for (const char* rank : {"fit-0", "fit-1", "fit-2"}) EXPECT_TRUE(board.wait_for(rank));
  kill(board.process("process-1"), SIGKILL);
  const auto result = program.wait();
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(board.read("death"), "5 was ended by signal 9 (Killed)");
  EXPECT_TRUE(
      result.err.starts_with("[ranks] rank 5 was ended by signal 9 (Killed); rank 4 then failed: the collective "
                             "was aborted; hint: "))
      << result.err;
  for (const char* rank : {"process-1", "process-2"}) EXPECT_TRUE(testing::is_gone(board.process(rank)));
}

const SelfProgram stopped_rank("subprocess_stopped_rank", [] {
  return report_errors([] {
    LocalRanks::instance().set_stopped_limit(std::chrono::milliseconds(200));
    std::atomic<bool> aborted{false};
    const auto launcher = make_launcher(2, [&](int64_t, const std::string& description) {
      board_of_program().write("death", description);
      aborted = true;
    });
    launch(*launcher, [&](int64_t rank) {
      if (rank == 1) raise(SIGSTOP);
      eventually([&] { return aborted.load(); });
      throw std::runtime_error("the collective was aborted");
    });
  });
});

TEST(SubprocessLauncherDeath, ARankThatStaysStoppedIsKilled) {
  const Folder folder;
  const auto result = stopped_rank.run(environment_with(folder));
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(Board(folder.path()).read("death"), "was killed: it had been stopped for 0.2 s");
  EXPECT_EQ(
      result.err,
      "[ranks] rank 5 was killed: it had been stopped for 0.2 s; rank 4 then failed: the collective was aborted\n");
}

const SelfProgram failing_rank("subprocess_failing_rank", [] {
  return report_errors([] {
    std::atomic<bool> aborted{false};
    const auto launcher = make_launcher(2, [&](int64_t, const std::string& description) {
      board_of_program().write("death", description);
      aborted = true;
    });
    launch(*launcher, [&](int64_t rank) {
      if (rank == 1) throw Error("data", "no such file");
      eventually([&] { return aborted.load(); });
      throw Error("comm", "the collective was aborted");
    });
  });
});

TEST(SubprocessLauncherDeath, ARankThatFailsIsTold) {
  const Folder folder;
  const auto result = failing_rank.run(environment_with(folder));
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(Board(folder.path()).read("death"), "ended with status 1");
  // Each process says what it knows; which error goes first is the control plane's affair.
  EXPECT_NE(result.err.find("[data] no such file\n"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("[comm] the collective was aborted\n"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("warning"), std::string::npos) << result.err;
}

// ---- The parent dies.

const SelfProgram endless_processes("subprocess_endless", [] {
  return report_errors([] {
    launch(*make_launcher(3), [](int64_t rank) {
      // A program that a rank started, and that outlives it, keeps no other rank alive.
      const pid_t helper = fork();
      if (helper == 0) {
        execl("/bin/sleep", "sleep", "600", nullptr);
        _exit(127);
      }
      board_of_program().write("helper-" + std::to_string(rank), std::to_string(helper));
      write_process(rank);
      meet("fit", rank, 3);
      hang();
    });
  });
});

TEST(SubprocessLauncherDeath, DeathOfTheParentEndsItsRanks) {
  for (const int signal : {SIGKILL, SIGTERM}) {
    const Folder folder;
    const Board board(folder.path());
    testing::RunningProgram program(endless_processes.words(), endless_processes.options(environment_with(folder)));
    std::vector<pid_t> ranks;
    std::vector<pid_t> helpers;
    for (const char* rank : {"0", "1", "2"}) {
      EXPECT_TRUE(board.wait_for(std::string("fit-") + rank));
      ranks.push_back(board.process(std::string("process-") + rank));
      helpers.push_back(board.process(std::string("helper-") + rank));
    }
    program.send(signal);
    EXPECT_EQ(program.wait().signal, signal);
    for (const pid_t rank : ranks) EXPECT_TRUE(eventually([&] { return testing::is_gone(rank); }));
    for (const pid_t helper : helpers) {
      EXPECT_FALSE(testing::is_gone(helper));
      kill(helper, SIGKILL);
    }
  }
}

// ---- The end of the program.

const SelfProgram failing_first("subprocess_failing_first", [] {
  return report_errors([] {
    LocalRanks::instance().set_patience(std::chrono::minutes(1), std::chrono::milliseconds(200));
    launch(*make_launcher(2), [&](int64_t rank) {
      if (rank == 1) write_process(1);
      if (rank == 1) hang();
      board_of_program().wait_for("process-1");
      throw Error("data", "no such file");
    });
  });
});

TEST(SubprocessLauncherEnd, RanksThatHangAfterAFailureAreKilled) {
  const Folder folder;
  const auto result = failing_first.run(environment_with(folder));
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.err,
            "[data] no such file\n[levin] warning: rank 5 is killed: it went on for 0.2 s after the end of "
            "this program\n");
  EXPECT_TRUE(testing::is_gone(Board(folder.path()).process("process-1")));
}

const SelfProgram early_leaver("subprocess_early_leaver", [] {
  return report_errors([] {
    const auto launcher = make_launcher(2);
    launch(*launcher, [](int64_t rank) {
      write_process(rank);
      meet("fit", rank, 2);
    });
    if (was_started_as_rank()) return;
    const pid_t other = board_of_program().process("process-1");
    eventually([&] { return ProcessEnd::has_come(other); });
    launch(*launcher, [](int64_t) { std::puts("must not run"); });
  });
});

TEST(SubprocessLauncherEnd, ACallThatARankDoesNotMakeFails) {
  const Folder folder;
  const auto result = early_leaver.run(environment_with(folder));
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.err,
            "[ranks] rank 5 ended with status 0 before this call of the trainer; hint: every rank must make "
            "the same calls, in the same order\n");
  EXPECT_EQ(result.out.find("must not run"), std::string::npos);
}

const SelfProgram bad_status("subprocess_bad_status", [] {
  return report_errors([] {
    launch(*make_launcher(2), [](int64_t rank) { meet("fit", rank, 2); });
    if (was_started_as_rank()) std::exit(3);
  });
});

TEST(SubprocessLauncherEnd, ABadStatusAfterSuccessIsAWarning) {
  const Folder folder;
  const auto result = bad_status.run(environment_with(folder));
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.err, "[levin] warning: rank 5 ended with status 3 when the last call of a trainer was done\n");
}

const SelfProgram lingering("subprocess_lingering", [] {
  return report_errors([] {
    LocalRanks::instance().set_patience(std::chrono::milliseconds(200), std::chrono::minutes(1));
    launch(*make_launcher(2), [](int64_t rank) {
      write_process(rank);
      meet("fit", rank, 2);
    });
    if (was_started_as_rank()) hang();
    if (fork() == 0) std::exit(0);  // a fork ends without minding the ranks
    wait(nullptr);
  });
});

TEST(SubprocessLauncherEnd, ARankThatDoesNotEndIsKilled) {
  const Folder folder;
  auto environment = environment_with(folder);
  environment["LSAN_OPTIONS"] = "detect_leaks=0";  // a fork has what threads own that it lacks
  const auto result = lingering.run(environment);
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.err, "[levin] warning: rank 5 is killed: it went on for 0.2 s after the end of this program\n");
  EXPECT_TRUE(testing::is_gone(Board(folder.path()).process("process-1")));
}

// ---- The lifeline's variable.

TEST(Lifeline, IsKnownByItsNumberAndInode) {
  const Lifeline lifeline;
  struct stat status {};
  ASSERT_EQ(fstat(lifeline.read_end(), &status), 0);
  EXPECT_EQ(lifeline.variable_value(), std::to_string(lifeline.read_end()) + ":" + std::to_string(status.st_ino));
  EXPECT_EQ(fcntl(lifeline.read_end(), F_GETFD), FD_CLOEXEC);
}

const SelfProgram unrelated("lifeline_unrelated", [] {
  watch_lifeline();
  watch_lifeline();
  std::puts("alive");
  return 0;
});

TEST(Lifeline, AVariableThatDescribesNoPipeOfThisProcessIsIgnored) {
  for (const char* value : {"nonsense", "0:1", "999:1"})
    EXPECT_NE(unrelated.run({{"LEVIN_LIFELINE", value}}).out.find("alive"), std::string::npos) << value;
}

}  // namespace
}  // namespace levin
