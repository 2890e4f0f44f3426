#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

namespace levin {

/// While it lives, operators on the CPU that this thread calls without a generator draw from one of the thread's own
/// instead of the process's default generator: the same stream as the default generator gives after
/// `torch::manual_seed(seed)`, whatever other threads do. Ranks that are threads each hold one.
///
/// Scopes nest; each ends on the thread that made it, the innermost first. Threads without a scope pay nothing. Threads
/// that the thread starts, and CUDA's generators (one a device), are not affected. The first scope of the process
/// registers kernels with LibTorch's dispatcher, which takes some milliseconds.
class ThreadGeneratorScope {
 public:
  explicit ThreadGeneratorScope(uint64_t seed);
  /// With a CPU generator that is there already.
  explicit ThreadGeneratorScope(at::Generator generator);
  ~ThreadGeneratorScope();
  ThreadGeneratorScope(const ThreadGeneratorScope&) = delete;
  ThreadGeneratorScope& operator=(const ThreadGeneratorScope&) = delete;

 private:
  at::Generator previous_;  ///< of the scope around this one; undefined without one
};

/// What CPU operators of this thread draw from: the generator of its innermost scope, else the process's default one.
at::Generator default_cpu_generator();

}  // namespace levin
