#pragma once

#include <ATen/core/Generator.h>

#include <mutex>

namespace levin {

/// Returns the state of a generator, a tensor of bytes on the CPU. Thread-safe.
inline at::Tensor generator_state(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

/// Gives a generator a state that generator_state returned. Thread-safe.
inline void set_generator_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace levin
