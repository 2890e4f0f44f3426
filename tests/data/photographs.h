#pragma once

#include "../loggers/test_python.h"
#include "tests/support/tree.h"

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

namespace levin::testing {

/// What a line of Python prints; empty where it fails.
inline std::string printed_by(const std::string& python, const std::string& code) {
  const auto result = run_program({python, "-c", code});
  return result.status == 0 ? result.out : "";
}

/// Photographs that the package scikit-image ships; empty where it is not there.
inline std::vector<std::string> photographs() {
  const std::string folder = printed_by(test_python(),
                                        "import importlib.util as u, pathlib; "
                                        "print(pathlib.Path(u.find_spec('skimage').origin).parent / 'data', end='')");
  if (folder.empty()) return {};
  return {folder + "/coffee.png", folder + "/chelsea.png", folder + "/rocket.jpg"};
}

/// Runs a script beside the tests of data with packages of both environments: torch and Pillow of the one, torchvision
/// of the other.
inline ProgramResult run_with_torchvision(const std::string& script, std::vector<std::string> arguments) {
  const std::string packages = printed_by(
      torch_python(),
      "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('torch').origin).parents[1], end='')");
  std::vector<std::string> words{test_python(), "-W", "ignore", source_path("tests/data/" + script)};
  for (auto& argument : arguments) words.push_back(std::move(argument));
  return run_program(std::move(words),
                     {.environment = {{"PYTHONPATH", packages}}, .timeout = std::chrono::seconds(300)});
}

}  // namespace levin::testing
