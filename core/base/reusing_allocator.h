#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

namespace levin {

/// A CPU allocator that answers a request with the block of its size that the calling thread freed last. A training
/// step frees its batch, activations and gradients and asks for the same again: here it finds them where the step
/// before left them, in the caches. malloc takes any free block that fits, so that what a step touches moves through
/// memory.
///
/// A thread keeps a block only in return for one of that size it took, so never more of a size than it once used at
/// a time, and kMaxKept bytes at most, which go back to malloc when its next block would exceed them and when the
/// thread ends. Blocks are malloc's own: either this allocator or LibTorch's may free them.
class ReusingAllocator final : public c10::Allocator {
 public:
  /// Larger blocks go to LibTorch's allocator: caches do not hold them.
  static constexpr size_t kMaxBlock = size_t{4} << 20;
  static constexpr size_t kMaxKept = size_t{32} << 20;

  /// Makes LibTorch use it from here on in the whole process, unless the program has set an allocator of its own. Does
  /// nothing under sanitizers, which are to notice uses of freed memory.
  static void install();

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t bytes) const override;
};

}  // namespace levin
