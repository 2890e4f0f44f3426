#include <levin/core/base/host_memory.h>

#include <levin/core/base/reusing_allocator.h>

#include <cstdlib>
#include <mutex>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace levin {

void keep_freed_memory() {
#ifdef __GLIBC__
  static std::once_flag once;
  std::call_once(once, [] {
    for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"})
      if (std::getenv(name) != nullptr) return;
    constexpr int kMebibyte = 1 << 20;
    mallopt(M_MMAP_THRESHOLD, 32 * kMebibyte);  // the largest that glibc accepts
    mallopt(M_TRIM_THRESHOLD, 256 * kMebibyte);
    ReusingAllocator::install();
  });
#endif
}

}  // namespace levin
