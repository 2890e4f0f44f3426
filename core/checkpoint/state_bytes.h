#pragma once

#include <levin/core/base/state.h>

#include <string>

namespace levin {

/// A state tree as bytes in memory, tensors included, for sending it to another rank. Every value survives exactly;
/// tensors come back contiguous on the CPU.
std::string state_to_bytes(const State& tree);

/// The inverse; throws levin::Error when the bytes are not what state_to_bytes gives.
State state_from_bytes(const std::string& bytes);

}  // namespace levin
