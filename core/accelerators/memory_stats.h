#pragma once

#include <cstdint>
#include <string>

namespace levin {

/// Bytes of a device's memory as this process uses it.
struct MemoryStats {
  int64_t allocated = 0;  ///< in tensors; of a CPU: resident memory of the process
  int64_t peak = 0;       ///< most bytes allocated at once so far
  int64_t reserved = 0;   ///< held by LibTorch's allocator, free blocks included; of a CPU: 0
  int64_t total = 0;      ///< of the device, or of the host
};

/// Reads the memory of this process on the host.
MemoryStats process_memory_stats();

/// Returns bytes in MiB as text: "12.5".
std::string mebibytes(int64_t bytes);

/// Returns the bytes of host memory that this and new programs can still get, within a container's limit.
int64_t available_host_memory();

}  // namespace levin
