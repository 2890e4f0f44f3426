#pragma once

#include <levin/core/base/state.h>

#include <string>

namespace levin {

/// Encodes a state tree, tensors included, as bytes to send to another rank. Every value survives exactly; tensors come
/// back contiguous on the CPU.
std::string state_to_bytes(const State& tree);

/// Decodes what state_to_bytes gave; throws levin::Error for other bytes.
State state_from_bytes(const std::string& bytes);

}  // namespace levin
