#pragma once

#include <levin/core/base/mutex.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace levin {

/// One thread for each replica but the first, whose work is done by the calling thread. They live as long as this
/// object. Each draws random numbers from a generator of its own, seeded from the global seed and its replica's index.
class ReplicaThreads {
 public:
  using Job = std::function<void(int64_t replica)>;
  class Ticket;

  /// `intra_op_threads`: how many threads each replica uses for LibTorch's own parallel loops.
  ReplicaThreads(int64_t replicas, int intra_op_threads);
  /// Waits for the job under way.
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  /// Runs job(0) to job(replicas - 1), the first in the calling thread, all under the caller's modes (gradients,
  /// inference, autocast), and returns when all are done. Throws what the replica of the lowest index threw.
  void run(int64_t replicas, const Job& job);
  /// Starts job(1) to job(replicas - 1) in the same way, as soon as jobs started before are done.
  std::shared_ptr<Ticket> start(int64_t replicas, Job job);
  /// Waits for a job that `start` began. Throws what the replica of the lowest index threw.
  void join(const std::shared_ptr<Ticket>& ticket);
  /// Waits until nothing runs.
  void wait_idle();

 private:
  void serve(int64_t replica, uint64_t seed, int intra_op_threads);

  Mutex mutex_;
  ConditionVariable has_job_;
  ConditionVariable is_done_;
  std::shared_ptr<Ticket> current_ LEVIN_GUARDED_BY(mutex_);
  int64_t started_ LEVIN_GUARDED_BY(mutex_) = 0;  ///< jobs so far
  int64_t busy_ LEVIN_GUARDED_BY(mutex_) = 0;     ///< threads at work on the current one
  bool ending_ LEVIN_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace levin
