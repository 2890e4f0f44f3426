#pragma once

#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace levin::testing {

/// Tensors of ranks that are threads of the test, combined when all have come. It has the collectives that layers need:
/// all-reduce and all-gather; the others throw.
class LockstepCollective : public Collective {
 public:
  /// What the ranks share.
  struct Meeting {
    explicit Meeting(int64_t count) : tensors(static_cast<size_t>(count)) {}
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<at::Tensor> tensors;
    int64_t arrived = 0;
    int64_t round = 0;
    std::string aborted;
  };

  LockstepCollective(std::shared_ptr<Meeting> meeting, int64_t rank) : meeting_(std::move(meeting)), rank_(rank) {}

  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return static_cast<int64_t>(meeting_->tensors.size()); }

  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op) override {
    ++all_reduces;
    const at::Tensor all = at::stack(meet(tensor));
    switch (op) {
      case ReduceOp::kSum:
        tensor.copy_(all.sum(0));
        break;
      case ReduceOp::kMean:
        tensor.copy_(all.mean(0));
        break;
      case ReduceOp::kMin:
        tensor.copy_(std::get<0>(all.min(0)));
        break;
      case ReduceOp::kMax:
        tensor.copy_(std::get<0>(all.max(0)));
        break;
    }
    return done();
  }
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input) override {
    ++all_gathers;
    output.copy_(at::cat(meet(input.flatten())));
    return done();
  }
  void barrier() override { meet(at::zeros({})); }
  void abort(const std::string& reason) override {
    {
      const std::lock_guard lock(meeting_->mutex);
      if (meeting_->aborted.empty()) meeting_->aborted = reason;
    }
    meeting_->changed.notify_all();
  }

  std::unique_ptr<Work> broadcast(at::Tensor, int64_t) override { unsupported(); }
  std::unique_ptr<Work> reduce_scatter(at::Tensor, at::Tensor, ReduceOp) override { unsupported(); }
  std::unique_ptr<Work> send(at::Tensor, int64_t, int64_t) override { unsupported(); }
  std::unique_ptr<Work> receive(at::Tensor, int64_t, int64_t) override { unsupported(); }
  std::string broadcast_bytes(const std::string&, int64_t) override { unsupported(); }
  std::vector<std::string> gather_bytes(const std::string&) override { unsupported(); }
  std::shared_ptr<Collective> subgroup(std::span<const int64_t>) override { unsupported(); }
  Store& store() override { unsupported(); }

  // How often this rank called them.
  std::atomic<int64_t> all_reduces{0};
  std::atomic<int64_t> all_gathers{0};

 private:
  class DoneWork : public Work {
   public:
    void wait() override {}
    bool is_completed() const override { return true; }
  };

  static std::unique_ptr<Work> done() { return std::make_unique<DoneWork>(); }
  [[noreturn]] static void unsupported() { throw InternalError("the lockstep collective has no such operation"); }

  /// The tensors of all ranks, in rank order.
  std::vector<at::Tensor> meet(const at::Tensor& tensor) {
    std::unique_lock lock(meeting_->mutex);
    meeting_->tensors[static_cast<size_t>(rank_)] = tensor.clone();
    std::vector<at::Tensor> all;
    pass(lock);
    all = meeting_->tensors;
    pass(lock);  // nobody brings the next tensor before all have taken these
    return all;
  }

  void pass(std::unique_lock<std::mutex>& lock) {
    const int64_t round = meeting_->round;
    if (++meeting_->arrived == world_size()) {
      meeting_->arrived = 0;
      ++meeting_->round;
      meeting_->changed.notify_all();
      return;
    }
    const bool came = meeting_->changed.wait_for(
        lock, std::chrono::minutes(1), [&] { return meeting_->round != round || !meeting_->aborted.empty(); });
    if (!meeting_->aborted.empty()) throw Error("comm", "another rank failed: " + meeting_->aborted);
    if (!came) throw Error("comm", "a rank did not come to a collective within a minute");
  }

  std::shared_ptr<Meeting> meeting_;
  int64_t rank_;
};

/// Runs ranks as threads and throws what the first one to fail threw, when all have ended.
inline void run_in_lockstep(int64_t ranks,
                            const std::function<void(int64_t, const std::shared_ptr<LockstepCollective>&)>& rank_main) {
  const auto meeting = std::make_shared<LockstepCollective::Meeting>(ranks);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto collective = std::make_shared<LockstepCollective>(meeting, rank);
      try {
        rank_main(rank, collective);
      } catch (...) {
        {
          const std::lock_guard lock(mutex);
          if (first == nullptr) first = std::current_exception();
        }
        collective->abort("it threw");
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace levin::testing
