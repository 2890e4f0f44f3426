#pragma once

#include <levin/core/checkpoint/inspect.h>

#include <string>

namespace levin {

/// Describes a file or folder of any WeightsFormat in words; with `with_tensors` every tensor. Reads no tensor. `key`:
/// see open_weights. Throws levin::Error.
std::string describe_weights(const std::string& path, bool with_tensors, const std::string& key = "");

/// Compares the weights of two files or folders, of any format each: names, types, shapes and elements bit by bit. The
/// keys say where torch.save files hold them.
CheckpointDifference diff_weights(const std::string& a, const std::string& b, const std::string& key_a = "",
                                  const std::string& key_b = "");

}  // namespace levin
