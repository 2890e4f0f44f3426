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

/// Returns the generator that this thread's CPU operators draw from: its innermost scope's, else the process's default.
at::Generator default_cpu_generator();

}  // namespace levin
