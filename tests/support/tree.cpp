#include "tests/support/tree.h"

#include <cstdlib>

namespace levin::testing {

std::string source_path(std::string_view relative) { return LEVIN_SOURCE_DIR "/" + std::string(relative); }

std::string build_path(std::string_view relative) { return LEVIN_BINARY_DIR "/" + std::string(relative); }

std::string torch_python() {
  const char* given = std::getenv("LEVIN_PYTHON");
  return given != nullptr ? given : LEVIN_PYTHON_DEFAULT;
}

}  // namespace levin::testing
