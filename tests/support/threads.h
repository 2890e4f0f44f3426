#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace levin::testing {

/// Whether this process has a thread of that name.
inline bool has_thread(const std::string& name) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");
    if (std::string found; std::getline(file, found) && found == name) return true;
  }
  return false;
}

}  // namespace levin::testing
