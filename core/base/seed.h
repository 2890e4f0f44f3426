#pragma once

#include <levin/core/base/state.h>

#include <cstdint>

namespace levin {

/// Seeds LibTorch's generators on every device (within a ThreadGeneratorScope, the thread's own for the CPU), data
/// order and random transforms.
void seed_everything(uint64_t seed);

/// Returns the seed last given to seed_everything; without one, a random seed drawn on the first call.
uint64_t global_seed();

/// Returns a well-mixed 64-bit hash of the numbers, for the seed of a stream that is a pure function of them.
uint64_t mix_seed(uint64_t a, uint64_t b, uint64_t c = 0);

/// Returns the state of the generators that this thread draws from by default: default_cpu_generator() and that of each
/// CUDA device in use.
State capture_rng_state();
void restore_rng_state(const State& state);

/// Restores on destruction the generators' state at construction.
class RngStateGuard {
 public:
  RngStateGuard() : state_(capture_rng_state()) {}
  ~RngStateGuard() { restore_rng_state(state_); }
  RngStateGuard(const RngStateGuard&) = delete;
  RngStateGuard& operator=(const RngStateGuard&) = delete;

 private:
  State state_;
};

}  // namespace levin
