#include <levin/core/base/reusing_allocator.h>

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <array>
#include <bit>
#include <cstdint>
#include <mutex>
#include <new>
#include <utility>

#include <malloc.h>

#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LEVIN_WATCHES_MEMORY
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LEVIN_WATCHES_MEMORY
#endif

namespace levin {
namespace {

/// Sizes of blocks: multiples of 64 bytes up to 1 KiB, then 16 between a power of two and the next, so that at most a
/// sixteenth of a block is unused.
constexpr int kStepBits = 4;
constexpr size_t kSteps = size_t{1} << kStepBits;
constexpr int kFirstBits = 10;
constexpr size_t kFirst = size_t{1} << kFirstBits;
constexpr size_t kSmallStep = kFirst / kSteps;

/// Returns the largest size of at most `bytes`, by its number; kSmallStep bytes at least.
constexpr size_t size_below(size_t bytes) {
  if (bytes < kFirst) return bytes / kSmallStep - 1;
  const auto octave = static_cast<size_t>(std::bit_width(bytes) - 1 - kFirstBits);
  return (kSteps - 1) + octave * kSteps + (bytes >> (octave + kFirstBits - kStepBits)) % kSteps;
}

constexpr size_t bytes_of(size_t size) {
  if (size < kSteps - 1) return (size + 1) * kSmallStep;
  const size_t octave = (size - (kSteps - 1)) / kSteps;
  return (kSteps + (size - (kSteps - 1)) % kSteps) << (octave + kFirstBits - kStepBits);
}

constexpr size_t size_above(size_t bytes) {
  if (bytes <= kSmallStep) return 0;
  const size_t below = size_below(bytes);
  return bytes_of(below) == bytes ? below : below + 1;
}

constexpr size_t kSizes = size_above(ReusingAllocator::kMaxBlock) + 1;
static_assert(bytes_of(kSizes - 1) == ReusingAllocator::kMaxBlock);

/// What one thread has freed, by size.
class FreedBlocks {
 public:
  ~FreedBlocks() { clear(); }

  /// Returns the block of this size that was freed last; nullptr: there is none.
  void* take(size_t size) {
    ++in_use_[size];
    Block* const block = newest_[size];
    if (block == nullptr) return nullptr;
    newest_[size] = block->older;
    kept_ -= bytes_of(size);
    return block;
  }

  /// Returns whether it keeps the block.
  bool keep(void* freed, size_t size) {
    if (size >= kSizes || in_use_[size] == 0) return false;  // another thread's: there it would be missed
    --in_use_[size];
    if (kept_ + bytes_of(size) > ReusingAllocator::kMaxKept) clear();
    newest_[size] = new (freed) Block{newest_[size]};
    kept_ += bytes_of(size);
    return true;
  }

 private:
  struct Block {
    Block* older;
  };

  void clear() {
    for (Block*& newest : newest_)
      while (newest != nullptr) c10::free_cpu(std::exchange(newest, newest->older));
    kept_ = 0;
  }

  std::array<Block*, kSizes> newest_{};
  std::array<int64_t, kSizes> in_use_{};
  size_t kept_ = 0;
};

/// Returns nullptr when the thread ends: tensors may be freed after its own variables.
FreedBlocks* freed_blocks() {
  static thread_local bool ended = false;
  struct UntilTheEnd : FreedBlocks {
    ~UntilTheEnd() { ended = true; }
  };
  if (ended) return nullptr;
  static thread_local UntilTheEnd blocks;
  return &blocks;
}

void release(void* block) {
  if (block == nullptr) return;
  c10::profiledCPUMemoryReporter().Delete(block);
  const size_t bytes = malloc_usable_size(block);
  FreedBlocks* const freed = freed_blocks();
  if (freed == nullptr || bytes < kSmallStep || !freed->keep(block, size_below(bytes))) c10::free_cpu(block);
}

}  // namespace

void ReusingAllocator::install() {
#ifndef LEVIN_WATCHES_MEMORY
  static auto& allocator = *new ReusingAllocator;  // never destroyed: tensors may live as long as the process
  static std::once_flag once;
  std::call_once(once, [] {
    if (c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator()) c10::SetCPUAllocator(&allocator);
  });
#endif
}

c10::DataPtr ReusingAllocator::allocate(size_t bytes) {
  FreedBlocks* const freed = freed_blocks();
  if (freed == nullptr || bytes == 0 || bytes > kMaxBlock) return c10::GetDefaultCPUAllocator()->allocate(bytes);
  const size_t size = size_above(bytes);
  void* block = freed->take(size);
  if (block == nullptr) block = c10::alloc_cpu(bytes_of(size));
  c10::profiledCPUMemoryReporter().New(block, bytes);
  return {block, block, &release, c10::Device(c10::kCPU)};
}

c10::DeleterFnPtr ReusingAllocator::raw_deleter() const { return &release; }

void ReusingAllocator::copy_data(void* to, const void* from, size_t bytes) const { default_copy_data(to, from, bytes); }

}  // namespace levin
