#include <levin/core/data/worker_pool.h>

#include <levin/core/base/error.h>
#include <levin/core/base/mutex.h>

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>
#include <system_error>
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

struct WorkerPool::Shared {
  Mutex mutex;
  ConditionVariable has_job;
  ConditionVariable is_idle;
  std::function<void(int64_t)> job LEVIN_GUARDED_BY(mutex);
  Ticket current LEVIN_GUARDED_BY(mutex) = 0;
  int64_t busy LEVIN_GUARDED_BY(mutex) = 0;
  bool ending LEVIN_GUARDED_BY(mutex) = false;
  std::atomic<bool> abandoned = false;
};

std::shared_ptr<WorkerPool> WorkerPool::make(int64_t num_threads) {
  return {new WorkerPool(num_threads), [](WorkerPool* pool) {
            // In a forked child there is nothing to join, so its memory is left.
            if (getpid() == pool->owner_process_) delete pool;
          }};
}

WorkerPool::WorkerPool(int64_t num_threads)
    : owner_process_(getpid()), size_(num_threads), shared_(std::make_shared<Shared>()) {
  threads_.reserve(static_cast<size_t>(num_threads));
  try {
    for (int64_t worker = 0; worker < num_threads; ++worker)
      threads_.emplace_back([shared = shared_, worker] { run(*shared, worker); });
  } catch (const std::system_error& error) {
    end();
    throw Error("data", fmt::format("cannot start worker {} of {}: {}; hint: fewer num_workers, or a higher limit of "
                                    "threads (`ulimit -u`, or that of the container)",
                                    threads_.size() + 1, num_threads, error.what()));
  }
}

WorkerPool::~WorkerPool() { end(); }

void WorkerPool::end() {
  {
    const MutexLock lock(shared_->mutex);
    shared_->ending = true;
  }
  shared_->has_job.notify_all();
  for (auto& thread : threads_) thread.join();
}

void WorkerPool::abandon() {
  const MutexLock lock(shared_->mutex);
  shared_->ending = true;
  shared_->abandoned = true;
  shared_->has_job.notify_all();
  for (auto& thread : threads_) thread.detach();
  threads_.clear();
}

bool WorkerPool::is_alive() const { return getpid() == owner_process_ && !shared_->abandoned; }

WorkerPool::Ticket WorkerPool::start(std::function<void(int64_t)> job) {
  MutexLock lock(shared_->mutex);
  shared_->is_idle.wait(lock, [this]() LEVIN_REQUIRES(shared_->mutex) { return shared_->busy == 0; });
  shared_->job = std::move(job);
  shared_->busy = size_;
  shared_->has_job.notify_all();
  return ++shared_->current;
}

bool WorkerPool::wait(Ticket ticket, std::optional<std::chrono::nanoseconds> patience) {
  if (!is_alive()) return true;
  MutexLock lock(shared_->mutex);
  const auto has_ended = [&]() LEVIN_REQUIRES(shared_->mutex) {
    return shared_->busy == 0 || shared_->current != ticket;
  };
  if (patience) return shared_->is_idle.wait_for(lock, *patience, has_ended);
  shared_->is_idle.wait(lock, has_ended);
  return true;
}

void WorkerPool::run(Shared& shared, int64_t worker) {
  pthread_setname_np(pthread_self(), ("levin-data-" + std::to_string(worker % 1000)).c_str());
  block_signals();
  use_one_core();
  Ticket done = 0;
  MutexLock lock(shared.mutex);
  for (;;) {
    shared.has_job.wait(lock, [&]() LEVIN_REQUIRES(shared.mutex) { return shared.ending || shared.current != done; });
    if (shared.ending) return;
    done = shared.current;
    const auto* const job = &shared.job;  // It stays until all threads are through with it.
    lock.unlock();
    (*job)(worker);
    lock.lock();
    if (--shared.busy > 0) continue;
    shared.job = nullptr;  // with what it owns
    shared.is_idle.notify_all();
  }
}

}  // namespace levin::data
