#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <string>

namespace levin {

/// The unit that a node of a traced graph belongs to, "the unit 'net.3'"; "the model" outside of units.
std::string unit_of(const torch::jit::Node& node);

}  // namespace levin
