#include <levin/core/accelerators/memory_stats.h>

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <fstream>
#include <string>

namespace levin {

/// Of the lines "VmRSS:     12345 kB" of /proc/self/status.
MemoryStats process_memory_stats() {
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

int64_t available_host_memory() {
  int64_t available = sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
  std::ifstream host("/proc/meminfo");
  std::string name;
  while (host >> name) {
    int64_t kibibytes = 0;
    if (name == "MemAvailable:" && host >> kibibytes) available = kibibytes << 10;
  }
  available += process_memory_stats().allocated;
  // "max" where the container has no limit; no such file outside of containers.
  int64_t limit = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit) available = std::min(available, limit);
  return available;
}

std::string mebibytes(int64_t bytes) { return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20)); }

}  // namespace levin
