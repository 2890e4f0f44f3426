#include <levin/strategies/launchers/core_share.h>

#include <levin/core/base/mutex.h>
#include <levin/core/devices/cpu_cores.h>

#include <ATen/Parallel.h>

namespace levin {
namespace {

/// One at a time: LibTorch changes more than the calling thread's number.
void set_threads(int threads) {
  static Mutex mutex;
  const MutexLock lock(mutex);
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
}

}  // namespace

void take_core_share(int64_t local_ranks) {
  if (const int64_t threads = threads_of_rank(local_ranks)) set_threads(static_cast<int>(threads));
}

CoreShare::CoreShare(int64_t local_ranks) : before_(at::get_num_threads()) { take_core_share(local_ranks); }

CoreShare::~CoreShare() { set_threads(before_); }

}  // namespace levin
