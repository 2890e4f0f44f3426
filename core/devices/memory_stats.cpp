#include <levin/core/devices/memory_stats.h>

#include <levin/build_info.h>

#if LEVIN_HAS_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <fstream>
#include <string>

namespace levin {
namespace {

#if LEVIN_HAS_CUDA
MemoryStats cuda_stats(const c10::Device& device) {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  return {.allocated = stats.allocated_bytes[kAll].current,
          .peak = stats.allocated_bytes[kAll].peak,
          .reserved = stats.reserved_bytes[kAll].current,
          .total = static_cast<int64_t>(at::cuda::getDeviceProperties(device.index())->totalGlobalMem)};
}

#endif

/// Of the lines "VmRSS:     12345 kB" of /proc/self/status.
MemoryStats process_stats() {
  MemoryStats stats;
  std::ifstream status("/proc/self/status");
  std::string name;
  while (status >> name) {
    int64_t kibibytes = 0;
    if (name == "VmRSS:" && status >> kibibytes) stats.allocated = kibibytes << 10;
    if (name == "VmHWM:" && status >> kibibytes) stats.peak = kibibytes << 10;
  }
  stats.total = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  return stats;
}

}  // namespace

MemoryStats memory_stats([[maybe_unused]] const c10::Device& device) {
#if LEVIN_HAS_CUDA
  if (device.is_cuda()) return cuda_stats(device);
#endif
  return process_stats();
}

void restart_peak([[maybe_unused]] const c10::Device& device) {
#if LEVIN_HAS_CUDA
  if (device.is_cuda()) c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
#endif
}

int64_t available_host_memory() {
  int64_t available = sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
  std::ifstream host("/proc/meminfo");
  std::string name;
  while (host >> name) {
    int64_t kibibytes = 0;
    if (name == "MemAvailable:" && host >> kibibytes) available = kibibytes << 10;
  }
  available += process_stats().allocated;
  // "max" where the container has no limit; no such file outside of containers.
  int64_t limit = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit) available = std::min(available, limit);
  return available;
}

std::string mebibytes(int64_t bytes) { return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20)); }

}  // namespace levin
