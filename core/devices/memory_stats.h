#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace levin {

/// Bytes of a device's memory as this process uses it.
struct MemoryStats {
  int64_t allocated = 0;  ///< in tensors; of a CPU: resident memory of the process
  int64_t peak = 0;       ///< most that was allocated so far
  int64_t reserved = 0;   ///< held by LibTorch's allocator, what is free for new tensors included; of a CPU: 0
  int64_t total = 0;      ///< of the device, or of the host
};

/// Waits for nothing.
MemoryStats memory_stats(const c10::Device& device);

/// The peak of a GPU begins anew with what is allocated now; that of a CPU stays.
void restart_peak(const c10::Device& device);

/// Gives bytes in MiB, for people: "12.5".
std::string mebibytes(int64_t bytes);

/// Bytes that the host can give to new programs and to this one together, a container's limit included.
int64_t available_host_memory();

}  // namespace levin
