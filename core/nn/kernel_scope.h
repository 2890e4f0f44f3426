#pragma once

namespace levin {

/// Scope in which LibTorch's operators that this thread runs on the CPU take Levin's kernels where these are faster and
/// give the same bits: so far max_pool2d with windows of 2 × 2 (max_pool_2x2), in forward alone, of float32.
///
/// Scopes nest, the innermost counts; `enabled` false is LibTorch again. The first scope that is enabled registers the
/// kernels with LibTorch's dispatcher, below autograd, autocast and functorch, for good; calls of threads without a
/// scope go straight on to LibTorch's. Since the bits are the same, it does not matter which scope a recomputation or
/// another thread is in.
class [[nodiscard]] KernelScope {
 public:
  explicit KernelScope(bool enabled = true);
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  bool before_;
};

}  // namespace levin
