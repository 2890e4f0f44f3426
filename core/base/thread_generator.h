#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

namespace levin {

/// Makes CPU operators that this thread calls without a generator draw, during its lifetime, from one of the thread's
/// own instead of the process's default generator: the same stream as the default generator gives after
/// `torch::manual_seed(seed)`, whatever other threads do. Ranks that are threads each hold one.
///
/// Scopes nest; each ends on the thread that made it, the innermost first. Threads without a scope pay nothing. Threads
/// that the thread starts, and CUDA's generators (one a device), are not affected. The first scope of the process
/// registers kernels with LibTorch's dispatcher, which takes some milliseconds.
class ThreadGeneratorScope {
 public:
  explicit ThreadGeneratorScope(uint64_t seed);
  /// Draws from `generator`, a CPU generator, instead of a new one.
  explicit ThreadGeneratorScope(at::Generator generator);
  ~ThreadGeneratorScope();
  ThreadGeneratorScope(const ThreadGeneratorScope&) = delete;
  ThreadGeneratorScope& operator=(const ThreadGeneratorScope&) = delete;

 private:
  at::Generator previous_;  ///< the enclosing scope's; undefined without one
};

/// Returns the generator that this thread's CPU operators draw from: its innermost scope's or its own, else the
/// process's default.
at::Generator default_cpu_generator();

/// Makes what this thread draws independent of other threads that call this. The first one draws from the process's
/// default generator until it ends. Each other one that has no generator of its own gets one, which it keeps outside of
/// scopes too: in the state that the default generator would have without the calls (TrainerCallScope) of the first.
void claim_generator();
/// Whether this thread draws from a generator of its own.
bool has_own_generator();
/// Makes this thread, the only one of a forked process, draw from the generator that the forking thread drew from.
void inherit_generator(at::Generator generator);

/// Around a call of a trainer: its random numbers are those of the calling thread, whatever other trainers do in other
/// threads at the same time or before. Claims the thread's generator. Calls nest.
class TrainerCallScope {
 public:
  TrainerCallScope();
  ~TrainerCallScope();
  TrainerCallScope(const TrainerCallScope&) = delete;
  TrainerCallScope& operator=(const TrainerCallScope&) = delete;
};

}  // namespace levin
