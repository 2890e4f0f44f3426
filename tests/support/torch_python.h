#pragma once

#include "run_program.h"

#include <cstdlib>
#include <string>

namespace levin::testing {

/// The Python that has torch: LEVIN_PYTHON, or that of scripts/bootstrap.
inline std::string torch_python() {
  const char* given = std::getenv("LEVIN_PYTHON");
  return given != nullptr ? given : LEVIN_PYTHON_DEFAULT;
}

/// Where it keeps its packages, as PYTHONPATH of another Python wants it; empty where it has no torch.
inline std::string torch_packages() {
  const auto found = run_program(
      {torch_python(), "-c",
       "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('torch').origin).parents[1], end='')"});
  return found.status == 0 ? found.out : "";
}

}  // namespace levin::testing
