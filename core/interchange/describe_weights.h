#pragma once

#include <levin/core/checkpoint/inspect.h>

#include <string>

namespace levin {

/// Describes a file or folder of any WeightsFormat in words; with `with_tensors` every tensor. Reads no tensor. Throws
/// levin::Error.
std::string describe_weights(const std::string& path, bool with_tensors);

/// Compares the weights of two files or folders, of any format each: names, types, shapes and elements bit by bit.
CheckpointDifference diff_weights(const std::string& a, const std::string& b);

}  // namespace levin
