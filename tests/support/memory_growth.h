#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>

namespace levin::testing {

/// The most memory of this process that was resident at a time, in KiB.
inline int64_t peak_resident_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6));
  return -1;
}

/// MiB by which the resident memory grows while a function runs, which throws nothing, in steps of 8 and 2000 at most:
/// in a process of its own, whose peak begins at what it has.
template <class Function>
int64_t memory_growth(const Function& function) {
  constexpr int64_t kStep = 8;
  const pid_t child = ::fork();
  if (child == 0) {
    const int64_t before = peak_resident_memory();
    function();
    const int64_t grown = (peak_resident_memory() - before) / 1024;
    ::_exit(before > 0 && grown >= 0 ? static_cast<int>(std::min<int64_t>(grown / kStep, 250)) : 255);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) == 255)
    ADD_FAILURE() << "the process whose memory was to be measured failed";
  return WEXITSTATUS(status) * kStep;
}

}  // namespace levin::testing
