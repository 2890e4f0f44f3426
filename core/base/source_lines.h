#pragma once

#include <string>
#include <vector>

namespace levin {

/// Where in the user's own code the functions of a stack are: "classifier.cpp:41 in Classifier::training_step", the
/// innermost first, functions that were inlined too. Code without debug information (-g) is left out, and so are
/// Levin, LibTorch, the C++ library and what else is installed below /usr. Empty where Levin was built without libdw.
/// Takes up to a few tenths of a second.
std::vector<std::string> user_source_lines(const std::vector<const void*>& stack);

}  // namespace levin
