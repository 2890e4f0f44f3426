#include <levin/strategies/replicas/replica_threads.h>

#include <levin/core/base/seed.h>
#include <levin/core/base/thread_generator.h>
#include <levin/core/base/weight_cast_scope.h>
#include <levin/strategies/replicas/intra_op_threads.h>

#include <ATen/ThreadLocalState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pthread.h>

#include <csignal>
#include <exception>
#include <string>
#include <utility>

namespace levin {
namespace {

/// Signals are for the thread that trains, which knows how to end a step.
void block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

/// The modes of a thread that code run for it elsewhere must see.
class ThreadModes {
 public:
  /// Runs a function in the present thread under these modes.
  template <class Function>
  void apply(const Function& function) const {
    // What the thread has switched on for itself, such as its generator, stays on.
    const c10::DispatchKeySet own = c10::impl::tls_local_dispatch_key_set().included_ - c10::default_included_set;
    const at::ThreadLocalStateGuard modes(state_);
    const c10::impl::IncludeDispatchKeyGuard keep(own);
    const WeightCastScope casts(casts_weights_);
    function();
  }

 private:
  at::ThreadLocalState state_;
  bool casts_weights_ = WeightCastScope::is_active();  // ThreadLocalState leaves it out
};

}  // namespace

class ReplicaThreads::Ticket {
 public:
  Ticket(int64_t replicas, Job job)
      : replicas_(replicas), job_(std::move(job)), errors_(static_cast<size_t>(replicas)) {}

  int64_t replicas() const { return replicas_; }
  bool is_done() const { return left_ == 0; }

  void run(int64_t replica) {
    modes_.apply([&] {
      try {
        job_(replica);
      } catch (...) {
        errors_[static_cast<size_t>(replica)] = std::current_exception();
      }
    });
  }

  /// Under the threads' lock. Returns whether it was the last.
  bool finish_one() {
    if (--left_ > 0) return false;
    job_ = nullptr;  // whoever keeps the ticket does not keep what the job holds
    return true;
  }

  void rethrow() const {
    for (const auto& error : errors_)
      if (error != nullptr) std::rethrow_exception(error);
  }

 private:
  ThreadModes modes_;
  int64_t replicas_;
  int64_t left_ = replicas_ - 1;
  Job job_;
  std::vector<std::exception_ptr> errors_;
};

ReplicaThreads::ReplicaThreads(int64_t replicas, int intra_op_threads) {
  threads_.reserve(static_cast<size_t>(replicas));
  for (int64_t replica = 1; replica < replicas; ++replica) {
    const uint64_t seed = mix_seed(global_seed(), static_cast<uint64_t>(replica));
    threads_.emplace_back([this, replica, seed, intra_op_threads] { serve(replica, seed, intra_op_threads); });
  }
}

ReplicaThreads::~ReplicaThreads() {
  wait_idle();
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  has_job_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void ReplicaThreads::run(int64_t replicas, const Job& job) {
  const auto ticket = start(replicas, job);
  std::exception_ptr first;
  try {
    job(0);
  } catch (...) {
    first = std::current_exception();
  }
  wait_idle();
  if (first != nullptr) std::rethrow_exception(first);
  ticket->rethrow();
}

std::shared_ptr<ReplicaThreads::Ticket> ReplicaThreads::start(int64_t replicas, Job job) {
  auto ticket = std::make_shared<Ticket>(replicas, std::move(job));
  if (replicas < 2) return ticket;
  {
    MutexLock lock(mutex_);
    is_done_.wait(lock, [this]() LEVIN_REQUIRES(mutex_) { return busy_ == 0; });
    current_ = ticket;
    busy_ = replicas - 1;
    ++started_;
  }
  has_job_.notify_all();
  return ticket;
}

void ReplicaThreads::join(const std::shared_ptr<Ticket>& ticket) {
  {
    MutexLock lock(mutex_);
    is_done_.wait(lock, [&] { return ticket->is_done(); });
  }
  ticket->rethrow();
}

void ReplicaThreads::wait_idle() {
  MutexLock lock(mutex_);
  is_done_.wait(lock, [this]() LEVIN_REQUIRES(mutex_) { return busy_ == 0; });
}

void ReplicaThreads::serve(int64_t replica, uint64_t seed, int intra_op_threads) {
  pthread_setname_np(pthread_self(), ("levin-dp-" + std::to_string(replica % 10000)).c_str());
  block_signals();
  const IntraOpThreadsScope cores(intra_op_threads);
  const ThreadGeneratorScope generator(seed);
  int64_t seen = 0;
  MutexLock lock(mutex_);
  for (;;) {
    has_job_.wait(lock, [&]() LEVIN_REQUIRES(mutex_) { return ending_ || started_ != seen; });
    if (ending_) return;
    seen = started_;
    if (current_ == nullptr || replica >= current_->replicas()) continue;
    std::shared_ptr<Ticket> ticket = current_;
    lock.unlock();
    ticket->run(replica);
    lock.lock();
    if (ticket->finish_one()) current_ = nullptr;
    if (--busy_ == 0) is_done_.notify_all();
  }
}

}  // namespace levin
