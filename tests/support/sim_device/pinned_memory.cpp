#include "tests/support/sim_device/pinned_memory.h"

#include <cstdlib>
#include <cstring>

namespace levin::testing::sim {

PinnedMemory& PinnedMemory::instance() {
  static auto* const memory = new PinnedMemory();
  return *memory;
}

c10::DataPtr PinnedMemory::allocate(size_t size) {
  const c10::Device host(c10::DeviceType::CPU);
  if (size == 0) return {nullptr, nullptr, &free, host};
  constexpr size_t kAlignment = 64;
  void* const pointer = std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
  TORCH_CHECK_WITH(OutOfMemoryError, pointer != nullptr, "sim: no page-locked memory of ", size, " bytes");
  const std::lock_guard lock(mutex_);
  blocks_[static_cast<char*>(pointer)] = size;
  allocated_ += static_cast<int64_t>(size);
  return {pointer, pointer, &free, host};
}

void PinnedMemory::free(void* pointer) {
  PinnedMemory& memory = instance();
  const std::lock_guard lock(memory.mutex_);
  const auto found = memory.blocks_.find(static_cast<char*>(pointer));
  if (found == memory.blocks_.end()) return;
  memory.allocated_ -= static_cast<int64_t>(found->second);
  memory.blocks_.erase(found);
  std::free(pointer);
}

c10::DeleterFnPtr PinnedMemory::raw_deleter() const { return &free; }

void PinnedMemory::copy_data(void* to, const void* from, size_t count) const { std::memcpy(to, from, count); }

bool PinnedMemory::contains(const void* address) const {
  const std::lock_guard lock(mutex_);
  auto found = blocks_.upper_bound(static_cast<const char*>(address));
  if (found == blocks_.begin()) return false;
  --found;
  return static_cast<const char*>(address) < found->first + found->second;
}

int64_t PinnedMemory::allocated() const {
  const std::lock_guard lock(mutex_);
  return allocated_;
}

}  // namespace levin::testing::sim
