#pragma once

#include "run_program.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

/// Programs that live in a test executable, for tests of what whole processes do: start themselves again, fork, die.
///
///     const SelfProgram greet("greet", [] { std::puts("hello"); return 0; });   // at namespace scope
///     TEST(Greeting, IsPrinted) { EXPECT_EQ(greet.run().out, ...); }
namespace levin::testing {

class SelfProgram {
 public:
  SelfProgram(std::string name, std::function<int()> body) : name_(std::move(name)) {
    // GoogleTest owns the object, and sets it up before the first test.
    [[maybe_unused]] static const ::testing::Environment* entry = ::testing::AddGlobalTestEnvironment(new Entry);
    bodies()[name_] = std::move(body);
  }

  /// The words of a command line that runs the program, and the variables that it needs.
  std::vector<std::string> words() const { return {std::filesystem::read_symlink("/proc/self/exe").string()}; }
  ProgramOptions options(std::map<std::string, std::string> environment = {}) const {
    environment[kVariable] = name_;
    // Starting one takes seconds on a loaded machine with sanitizers.
    return {.environment = std::move(environment), .timeout = std::chrono::minutes(4)};
  }
  ProgramResult run(std::map<std::string, std::string> environment = {}) const {
    return run_program(words(), options(std::move(environment)));
  }

 private:
  static constexpr const char* kVariable = "LEVIN_TEST_PROGRAM";

  static std::map<std::string, std::function<int()>>& bodies() {
    static std::map<std::string, std::function<int()>> all;
    return all;
  }

  /// In a process that was started as one of the programs, runs it in place of the tests.
  class Entry : public ::testing::Environment {
    void SetUp() override {
      const char* name = std::getenv(kVariable);
      if (name != nullptr) std::exit(bodies().at(name)());
    }
  };

  const std::string name_;
};

}  // namespace levin::testing
