#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace levin::data {

/// Threads that live as long as their loader and run one job after the other. Each uses one core for LibTorch's own
/// parallel loops; the thread count of other threads stays as it is.
class WorkerPool {
 public:
  using Ticket = uint64_t;

  /// Starts a pool. After a fork the child's copy has no threads: it must not be used there (see is_alive), but may be
  /// destroyed.
  static std::shared_ptr<WorkerPool> make(int64_t num_threads);

  /// Starts job(worker) once in each thread, worker = 0, 1, ..., after the previous job has ended. The job must not
  /// throw.
  Ticket start(std::function<void(int64_t worker)> job);
  /// Waits until the job of that ticket has ended in all threads.
  void wait(Ticket ticket);
  /// Returns false in a process forked from the one that made the threads.
  bool is_alive() const;
  int64_t size() const { return static_cast<int64_t>(threads_.size()); }

 private:
  explicit WorkerPool(int64_t num_threads);
  ~WorkerPool();
  void run(int64_t worker);

  const int owner_process_;
  std::mutex mutex_;
  std::condition_variable has_job_;
  std::condition_variable is_idle_;
  std::function<void(int64_t)> job_;
  Ticket current_ = 0;
  int64_t busy_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace levin::data
