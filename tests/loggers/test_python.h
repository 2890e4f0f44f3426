#pragma once

#include "../support/run_program.h"
#include "tests/support/tree.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

/// The Python environment of scripts/test-requirements.txt.
namespace levin::testing {

/// Its interpreter, or LEVIN_TEST_PYTHON.
inline std::string test_python() {
  if (const char* path = std::getenv("LEVIN_TEST_PYTHON")) return path;
  return source_path(".deps/test-venv/bin/python");
}

/// Why a module cannot be used, or nothing when it can.
inline std::string missing_module(const std::string& name) {
  const std::string python = test_python();
  const std::string hint = "; run scripts/bootstrap --with-test-packages, or set LEVIN_TEST_PYTHON";
  if (!std::filesystem::exists(python)) return python + " is not there" + hint;
  const std::string code = "import importlib.util as u, sys; sys.exit(u.find_spec('" + name + "') is None)";
  return run_program({python, "-c", code}).status == 0 ? "" : python + " has no " + name + hint;
}

/// What a script beside the tests of loggers prints.
inline std::string output_of_script(const std::string& script, std::vector<std::string> arguments) {
  std::vector<std::string> words{test_python(), "-W", "ignore", source_path("tests/loggers/" + script)};
  for (auto& argument : arguments) words.push_back(std::move(argument));
  const auto result = run_program(std::move(words));
  EXPECT_EQ(result.status, 0) << result.err;
  return result.out;
}

}  // namespace levin::testing
