#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
  /// throw, and must own what it uses: see abandon.
  Ticket start(std::function<void(int64_t worker)> job);
  /// Waits until the job of that ticket has ended in all threads, for so long at most; returns whether it has.
  bool wait(Ticket ticket, std::optional<std::chrono::nanoseconds> patience = std::nullopt);
  /// Leaves the threads to themselves: nobody waits for them any more, not even the end of the process, and each ends
  /// with its job. For a job that does not come back.
  void abandon();
  /// Returns false once the threads were abandoned, and in a process forked from the one that made them.
  bool is_alive() const;
  int64_t size() const { return size_; }

 private:
  struct Shared;
  explicit WorkerPool(int64_t num_threads);
  ~WorkerPool();
  void end();
  static void run(Shared& shared, int64_t worker);

  const int owner_process_;
  const int64_t size_;
  std::shared_ptr<Shared> shared_;  ///< of the threads, too, which may live longer
  std::vector<std::thread> threads_;
};

}  // namespace levin::data
