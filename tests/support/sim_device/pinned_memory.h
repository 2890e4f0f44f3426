#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace levin::testing::sim {

/// Page-locked host memory: ordinary memory that is known by its address. A late copy holds the tensor on the host, so
/// that its memory is not reused before the copy was made.
class PinnedMemory final : public at::HostAllocator {
 public:
  static PinnedMemory& instance();

  c10::DataPtr allocate(size_t size) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t count) const override;
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

  bool contains(const void* address) const;
  /// Bytes in use.
  int64_t allocated() const;

 private:
  PinnedMemory() = default;
  static void free(void* pointer);

  mutable std::mutex mutex_;
  std::map<const char*, size_t> blocks_;
  int64_t allocated_ = 0;
};

}  // namespace levin::testing::sim
