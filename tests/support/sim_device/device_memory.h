#pragma once

#include "tests/support/sim_device/vector_clock.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace levin::testing::sim {

/// Bytes of a block that a kernel or a copy touches.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
};

/// A block of a device's memory. Its pages can be touched only while it is open.
class Block {
 public:
  Block(char* base, size_t mapped, c10::DeviceIndex device, size_t stream);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  char* base() const { return base_; }
  size_t mapped() const { return mapped_; }
  size_t size() const { return size_; }
  c10::DeviceIndex device() const { return device_; }
  size_t stream() const { return stream_; }
  /// Differs between two uses of the same memory.
  uint64_t serial() const { return serial_; }

  void open();
  void close();

  /// Notes that work `number` of a stream, named `kernel`, touches the bytes. Reports a race with what the stream has
  /// not waited for.
  void touch(ByteRange range, size_t stream, uint64_t number, bool write, const std::string& kernel);

  /// Keeps a copy from the host for later: it runs, with the block open, before anything else touches the block.
  void add_late_fill(std::function<void()> fill) { late_fills_.push_back(std::move(fill)); }
  void run_late_fills();

 private:
  friend class DeviceMemory;

  struct Access {
    ByteRange range;
    size_t stream;
    uint64_t number;
    bool write;
    std::string kernel;
  };

  /// Begins a new use, by `size` bytes.
  void take(size_t size, uint64_t serial);
  /// The work of another stream that a kernel of the block's own stream could collide with; nullptr for none.
  const Access* unfinished() const;

  char* base_;
  size_t mapped_;
  size_t size_ = 0;
  c10::DeviceIndex device_;
  size_t stream_;  ///< that it belongs to
  uint64_t serial_ = 0;
  int open_ = 0;
  std::vector<Access> accesses_;
  std::vector<size_t> recorded_streams_;  ///< told of by record_stream
  VectorClock free_after_;                ///< what the recorded streams had to do when the block was freed
  std::vector<std::function<void()>> late_fills_;
};

/// The memory of all devices: as CUDA's allocator it keeps freed blocks for the stream that they belong to, and gives
/// them out again without waiting for other streams unless record_stream told of these. Of the free blocks it takes the
/// one whose reuse is wrong, if there is one. Fresh memory is filled with NaN.
class DeviceMemory final : public c10::DeviceAllocator {
 public:
  static DeviceMemory& instance();

  /// Of the calling thread's current device and stream. Throws c10::OutOfMemoryError.
  c10::DataPtr allocate(size_t size) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t count) const override;
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t pool = {0, 0}) override;
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;

  /// The block in use around an address; nullptr for an address that is none of a device.
  Block* find(const void* address) const;
  /// The serial number of the next block.
  uint64_t next_serial() const { return next_serial_; }

 private:
  DeviceMemory() = default;
  static void free(void* pointer);
  std::unique_ptr<Block> take_cached(c10::DeviceIndex device, size_t stream, size_t mapped);

  std::map<const char*, std::unique_ptr<Block>> blocks_;  ///< in use
  std::map<std::tuple<c10::DeviceIndex, size_t>, std::vector<std::unique_ptr<Block>>>
      cached_;  ///< by device and stream
  uint64_t next_serial_ = 1;
  struct Use {
    int64_t allocated = 0;
    int64_t peak = 0;
    int64_t reserved = 0;
  } uses_[kMaximumDevices];
};

}  // namespace levin::testing::sim
