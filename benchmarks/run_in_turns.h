#pragma once

#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <stdexcept>
#include <string>
#include <thread>

/// Compares two variants of a benchmark more sharply than one run after another can.
namespace levin::benchmarks {

/// Seconds of processor time that this process has taken so far, all threads together.
inline double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// `program --variant INDEX COUNT` in a process of its own, which runs between proceed() and pause() only.
class PausedVariant {
 public:
  PausedVariant(const std::string& program, size_t variant, int64_t count) {
    const std::string index = std::to_string(variant);
    const std::string number = std::to_string(count);
    std::array<const char*, 5> arguments{program.c_str(), "--variant", index.c_str(), number.c_str(), nullptr};
    std::array<int, 2> ends{};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    bool started = pipe2(ends.data(), O_CLOEXEC) == 0;
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    started = started && posix_spawnp(&process_, program.c_str(), &actions, nullptr,
                                      const_cast<char**>(arguments.data()), environ) == 0;
    posix_spawn_file_actions_destroy(&actions);
    if (!started) throw std::runtime_error("cannot run " + program);
    close(ends[1]);
    output_ = fdopen(ends[0], "r");
    pause();
  }
  PausedVariant(const PausedVariant&) = delete;
  PausedVariant& operator=(const PausedVariant&) = delete;
  ~PausedVariant() {
    if (!has_ended()) kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    std::fclose(output_);
  }

  void proceed() { kill(process_, SIGCONT); }
  void pause() { kill(process_, SIGSTOP); }
  bool has_ended() const {
    siginfo_t state{};
    return waitid(P_PID, static_cast<id_t>(process_), &state, WEXITED | WNOHANG | WNOWAIT) != 0 || state.si_pid != 0;
  }
  /// What it printed, when it has ended.
  double seconds() {
    double seconds = 0;
    if (std::fscanf(output_, "%lf", &seconds) != 1)
      throw std::runtime_error("a variant failed; hint: run it by hand with --variant N");
    return seconds;
  }

 private:
  pid_t process_ = 0;
  FILE* output_ = nullptr;
};

/// Two variants that print processor time, in turns of a tenth of a second on one core, to which this process is bound
/// from now on: what slows the machine meanwhile slows both. Throws
/// std::runtime_error where one prints none. The clock goes on while a variant pauses, so that what it
/// does by the clock counts twice.
inline std::array<double, 2> run_in_turns(const std::string& program, std::array<size_t, 2> variants, int64_t count) {
  constexpr std::chrono::milliseconds kTurn(100);
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(sched_getcpu(), &core);
  if (sched_setaffinity(0, sizeof core, &core) != 0) throw std::runtime_error("cannot bind to one core");
  PausedVariant first(program, variants[0], count);
  PausedVariant second(program, variants[1], count);
  while (!first.has_ended() || !second.has_ended()) {
    for (PausedVariant* variant : {&first, &second}) {
      if (variant->has_ended()) continue;
      variant->proceed();
      std::this_thread::sleep_for(kTurn);
      variant->pause();
    }
  }
  return {first.seconds(), second.seconds()};
}

}  // namespace levin::benchmarks
