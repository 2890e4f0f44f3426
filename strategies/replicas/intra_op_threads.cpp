#include <levin/strategies/replicas/intra_op_threads.h>

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace levin {
namespace {

/// at::set_num_threads would also change the default of threads made later, so OpenMP is asked itself, and the one that
/// LibTorch has loaded, whichever it is.
void set_threads_of_caller(int threads) {
  using SetNumThreads = void (*)(int);
  static const auto set = reinterpret_cast<SetNumThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set != nullptr) set(threads);
}

}  // namespace

// Asking for the number first ends LibTorch's own first-use initialisation of the thread, which would set it again.
IntraOpThreadsScope::IntraOpThreadsScope(int threads) : previous_(at::get_num_threads()) {
  if (threads != previous_) set_threads_of_caller(threads);
}

IntraOpThreadsScope::~IntraOpThreadsScope() {
  if (at::get_num_threads() != previous_) set_threads_of_caller(previous_);
}

}  // namespace levin
