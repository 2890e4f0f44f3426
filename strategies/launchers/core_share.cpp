#include <levin/strategies/launchers/core_share.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace levin {
namespace {

/// One at a time: LibTorch changes more than the calling thread's number.
void set_threads(int threads) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
}

}  // namespace

int64_t threads_of_rank(int64_t local_ranks) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return 0;
  return std::max<int64_t>(1, std::thread::hardware_concurrency() / local_ranks);
}

void take_core_share(int64_t local_ranks) {
  if (const int64_t threads = threads_of_rank(local_ranks)) set_threads(static_cast<int>(threads));
}

CoreShare::CoreShare(int64_t local_ranks) : before_(at::get_num_threads()) { take_core_share(local_ranks); }

CoreShare::~CoreShare() { set_threads(before_); }

}  // namespace levin
