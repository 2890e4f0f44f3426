#pragma once

#include "run_program.h"
#include "tests/support/tree.h"
#include "tree.h"

#include <string>

namespace levin::testing {

/// Where the Python that has torch keeps its packages, as PYTHONPATH of another Python wants it; empty where it has no
/// torch.
inline std::string torch_packages() {
  const auto found = run_program(
      {torch_python(), "-c",
       "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('torch').origin).parents[1], end='')"});
  return found.status == 0 ? found.out : "";
}

}  // namespace levin::testing
