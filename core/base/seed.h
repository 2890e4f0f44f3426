#pragma once

#include <levin/core/base/state.h>

#include <c10/core/Device.h>

#include <cstdint>

namespace levin {

/// Seeds the CPU's generator that this thread draws from (see claim_generator), data order and random transforms of the
/// trainers that it calls, and the generators of devices: at once those that a trainer has used, others when one begins
/// to. Starts no driver.
void seed_everything(uint64_t seed);

/// Makes the generator of a device follow seed_everything from now on: the first call for a device seeds it as the last
/// seed_everything said, if there was one. The CPU's always does.
void follow_seed(const at::Device& device);

/// Seeds the generators that a rank on this device draws from by default: default_cpu_generator() and the device's.
void seed_generators(const at::Device& device, uint64_t seed);

/// Returns the seed last given to seed_everything on this thread, if it has a generator of its own, else in the
/// process; without one, a random seed drawn on the first call.
uint64_t global_seed();

/// Returns a well-mixed 64-bit hash of the numbers, for the seed of a stream that is a pure function of them.
uint64_t mix_seed(uint64_t a, uint64_t b, uint64_t c = 0);

/// Returns the state of the generators that a rank on this device draws from by default. It belongs to no index: what
/// cuda:0 had can be restored on cuda:3.
State capture_rng_state(const at::Device& device = at::kCPU);
void restore_rng_state(const State& state, const at::Device& device = at::kCPU);

/// Restores on destruction the generators' state at construction.
class RngStateGuard {
 public:
  explicit RngStateGuard(const at::Device& device = at::kCPU) : device_(device), state_(capture_rng_state(device)) {}
  ~RngStateGuard() { restore_rng_state(state_, device_); }
  RngStateGuard(const RngStateGuard&) = delete;
  RngStateGuard& operator=(const RngStateGuard&) = delete;

 private:
  at::Device device_;
  State state_;
};

}  // namespace levin
