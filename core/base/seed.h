#pragma once

#include <levin/core/base/state.h>

#include <cstdint>

namespace levin {

/// Seeds LibTorch's generators on every device (in a ThreadGeneratorScope the thread's own for the CPU) and is the seed
/// from which data order and random transforms derive.
void seed_everything(uint64_t seed);

/// The seed last given to seed_everything; when there was none, one drawn at random on the first call.
uint64_t global_seed();

/// A well-mixed 64-bit hash of several numbers: the seed of a stream that is a pure function of them.
uint64_t mix_seed(uint64_t a, uint64_t b, uint64_t c = 0);

/// The state of the generators that this thread draws from by default: default_cpu_generator(), and that of each CUDA
/// device in use.
State capture_rng_state();
void restore_rng_state(const State& state);

/// Restores the generators as they were when it was made.
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
