#pragma once

#include "tests/support/tree.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace levin::testing {

/// While it lives, NVML is the stand-in (stand_in_nvml.cpp) with this script.
class StandInNvml {
 public:
  enum class Driver { kPresent, kOld };

  explicit StandInNvml(const std::string& script, Driver driver = Driver::kPresent) {
    static int made = 0;
    path_ = ::testing::TempDir() + "levin_nvml_" + std::to_string(getpid()) + "_" + std::to_string(made++);
    std::ofstream(path_) << script;
    const char* const folder = std::getenv("LEVIN_TEST_LIBRARIES");
    const std::string libraries = folder != nullptr ? folder : build_path("tests");
    const char* const name = driver == Driver::kOld ? "/libstand_in_nvml_old.so" : "/libstand_in_nvml.so";
    setenv("LEVIN_NVML_LIBRARY", (libraries + name).c_str(), 1);
    setenv("LEVIN_STAND_IN_NVML", path_.c_str(), 1);
  }
  ~StandInNvml() {
    unsetenv("LEVIN_NVML_LIBRARY");
    unsetenv("LEVIN_STAND_IN_NVML");
    let_go();
  }
  StandInNvml(const StandInNvml&) = delete;
  StandInNvml& operator=(const StandInNvml&) = delete;

  /// Calls that hang come back.
  void let_go() const { std::filesystem::remove(path_); }

 private:
  std::string path_;
};

}  // namespace levin::testing
