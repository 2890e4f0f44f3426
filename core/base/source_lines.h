#pragma once

#include <string>
#include <vector>

namespace levin {

/// Returns the lines of the user's own code on a stack: "classifier.cpp:41 in Classifier::training_step", innermost
/// first, inlined functions included. Code without debug information (-g) is left out, and so are Levin, LibTorch, the
/// C++ library and whatever is installed below /usr. Empty where Levin was built without libdw. Takes up to a few
/// tenths of a second.
std::vector<std::string> user_source_lines(const std::vector<const void*>& stack);

}  // namespace levin
