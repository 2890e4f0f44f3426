#pragma once

#include <string>
#include <string_view>

/// Where the tree is that the tests were built from. Only tree.cpp knows: paths in every test's command line would keep
/// a compiler cache from sharing objects between two clones.
namespace levin::testing {

/// "tests/nn/make_program.py" in the source tree.
std::string source_path(std::string_view relative);
/// "bin/fashion_mnist" in the build tree.
std::string build_path(std::string_view relative);
/// The Python that has torch: LEVIN_PYTHON, or that of scripts/bootstrap.
std::string torch_python();

}  // namespace levin::testing
