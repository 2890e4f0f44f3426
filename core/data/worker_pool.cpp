#include <levin/core/data/worker_pool.h>

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <utility>

namespace levin::data {

namespace {

/// Signals are for the thread that trains, which knows how to end a step.
void block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

/// at::set_num_threads(1) would also change the default of threads made later, so OpenMP is asked itself, and the one
/// that LibTorch has loaded, whichever it is. LibTorch's own first-use initialisation must be over, since it sets the
/// number too.
void use_one_core() {
  at::get_num_threads();
  using SetNumThreads = void (*)(int);
  if (auto* set = reinterpret_cast<SetNumThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) set(1);
}

}  // namespace

std::shared_ptr<WorkerPool> WorkerPool::make(int64_t num_threads) {
  return {new WorkerPool(num_threads), [](WorkerPool* pool) {
            if (pool->is_alive()) delete pool;  // in a forked child there is nothing to join, so its memory is left
          }};
}

WorkerPool::WorkerPool(int64_t num_threads) : owner_process_(getpid()) {
  threads_.reserve(static_cast<size_t>(num_threads));
  for (int64_t worker = 0; worker < num_threads; ++worker) threads_.emplace_back([this, worker] { run(worker); });
}

WorkerPool::~WorkerPool() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  has_job_.notify_all();
  for (auto& thread : threads_) thread.join();
}

bool WorkerPool::is_alive() const { return getpid() == owner_process_; }

WorkerPool::Ticket WorkerPool::start(std::function<void(int64_t)> job) {
  std::unique_lock lock(mutex_);
  is_idle_.wait(lock, [&] { return busy_ == 0; });
  job_ = std::move(job);
  busy_ = size();
  ++current_;
  has_job_.notify_all();
  return current_;
}

void WorkerPool::wait(Ticket ticket) {
  if (!is_alive()) return;
  std::unique_lock lock(mutex_);
  is_idle_.wait(lock, [&] { return busy_ == 0 || current_ != ticket; });
}

void WorkerPool::run(int64_t worker) {
  pthread_setname_np(pthread_self(), ("levin-data-" + std::to_string(worker % 1000)).c_str());
  block_signals();
  use_one_core();
  Ticket done = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    has_job_.wait(lock, [&] { return ending_ || current_ != done; });
    if (ending_) return;
    done = current_;
    lock.unlock();
    job_(worker);
    lock.lock();
    if (--busy_ == 0) is_idle_.notify_all();
  }
}

}  // namespace levin::data
