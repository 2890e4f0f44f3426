#pragma once

#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>
#include <levin/core/comm/memory_store.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace levin::testing {

/// Ranks that are threads of the test: every operation is done, in rank order, when its call returns. Ranks that call
/// different operations get an error, and so does one that waits for longer than a minute.
class ThreadCollective : public Collective {
 public:
  /// The collectives of a group of `world_size` ranks.
  static std::vector<std::shared_ptr<ThreadCollective>> make_group(int64_t world_size) {
    auto group = std::make_shared<Group>();
    group->said.resize(static_cast<size_t>(world_size));
    const std::shared_ptr<Store> store = make_memory_store();
    std::vector<std::shared_ptr<ThreadCollective>> ranks;
    for (int64_t rank = 0; rank < world_size; ++rank)
      ranks.push_back(std::shared_ptr<ThreadCollective>(new ThreadCollective(group, store->clone(), rank)));
    return ranks;
  }

  /// How many operations this rank has called.
  int64_t calls() const { return calls_; }
  /// Bytes that this rank was given, its own included where all get those of all.
  int64_t received() const { return received_; }

  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return static_cast<int64_t>(group_->said.size()); }

  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op) override {
    tensor.copy_(reduced("all_reduce", tensor, op));
    return done();
  }
  std::unique_ptr<Work> broadcast(at::Tensor tensor, int64_t root) override {
    fill(tensor, exchange("broadcast", rank_ == root ? bytes_of(tensor) : "").at(static_cast<size_t>(root)));
    return done();
  }
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input) override {
    std::string all;
    for (const std::string& bytes : exchange("all_gather", bytes_of(input))) all += bytes;
    fill(output, all);
    return done();
  }
  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    const at::Tensor sum = reduced("reduce_scatter", input, op).reshape({world_size(), -1});
    output.copy_(sum[rank_].reshape(output.sizes()));
    return done();
  }
  std::unique_ptr<Work> send(at::Tensor tensor, int64_t to, int64_t tag) override {
    ++calls_;
    {
      const std::lock_guard lock(group_->mutex);
      group_->mail[{rank_, to, tag}].push_back(bytes_of(tensor));
    }
    group_->changed.notify_all();
    return done();
  }
  std::unique_ptr<Work> receive(at::Tensor tensor, int64_t from, int64_t tag) override {
    ++calls_;
    std::unique_lock lock(group_->mutex);
    auto& letters = group_->mail[{from, rank_, tag}];
    wait(lock, "receive", [&] { return !letters.empty(); });
    fill(tensor, letters.front());
    letters.pop_front();
    return done();
  }
  void barrier() override { exchange("barrier", ""); }

  std::string broadcast_bytes(const std::string& bytes, int64_t root) override {
    std::string sent = exchange("broadcast_bytes", rank_ == root ? bytes : "").at(static_cast<size_t>(root));
    received_ += std::ssize(sent);
    return sent;
  }
  std::vector<std::string> gather_bytes(const std::string& bytes) override {
    auto all = exchange("gather_bytes", bytes);
    for (const std::string& of_rank : all) received_ += std::ssize(of_rank);
    return all;
  }

  std::shared_ptr<Collective> subgroup(std::span<const int64_t> ranks) override {
    std::shared_ptr<ThreadCollective> mine;
    exchange("subgroup", "");
    {
      const std::lock_guard lock(group_->mutex);
      auto& made = group_->subgroups[{subgroups_++, std::vector<int64_t>(ranks.begin(), ranks.end())}];
      if (made.empty()) made = make_group(static_cast<int64_t>(ranks.size()));
      for (size_t i = 0; i < ranks.size(); ++i)
        if (ranks[i] == rank_) mine = made[i];
    }
    return mine;
  }
  void abort(const std::string& reason) override {
    {
      const std::lock_guard lock(group_->mutex);
      if (group_->aborted.empty()) group_->aborted = reason.empty() ? "aborted" : reason;
    }
    group_->changed.notify_all();
  }
  Store& store() override { return *store_; }

 private:
  struct Group {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::string> said;  ///< by rank, of the operation under way
    std::set<std::string> operations;
    size_t arrived = 0;
    size_t left = 0;
    std::string aborted;
    std::map<std::tuple<int64_t, int64_t, int64_t>, std::deque<std::string>> mail;
    std::map<std::pair<int64_t, std::vector<int64_t>>, std::vector<std::shared_ptr<ThreadCollective>>> subgroups;
  };
  class DoneWork : public Work {
   public:
    void wait() override {}
    bool is_completed() const override { return true; }
  };

  ThreadCollective(std::shared_ptr<Group> group, std::unique_ptr<Store> store, int64_t rank)
      : group_(std::move(group)), store_(std::move(store)), rank_(rank) {}

  static std::unique_ptr<Work> done() { return std::make_unique<DoneWork>(); }

  static std::string bytes_of(const at::Tensor& tensor) {
    const at::Tensor dense = tensor.detach().cpu().contiguous();
    return std::string(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
  }
  void fill(at::Tensor& tensor, const std::string& bytes) {
    received_ += std::ssize(bytes);
    const at::Tensor dense = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
    if (bytes.size() != dense.nbytes())
      throw Error("comm", fmt::format("ranks gave {} bytes; {} were expected", bytes.size(), dense.nbytes()));
    if (!bytes.empty()) std::memcpy(dense.mutable_data_ptr(), bytes.data(), bytes.size());
    tensor.copy_(dense);
  }

  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, const char* operation, Ready ready) {
    const auto is_over = [&] { return ready() || !group_->aborted.empty(); };
    if (!group_->changed.wait_for(lock, std::chrono::minutes(1), is_over))
      throw Error("comm", fmt::format("rank {} waited for a minute in {}", rank_, operation));
    if (!ready()) throw Error("comm", fmt::format("{} was ended: {}", operation, group_->aborted));
  }

  /// What every rank said, in rank order.
  std::vector<std::string> exchange(const char* operation, std::string bytes) {
    ++calls_;
    Group& group = *group_;
    std::unique_lock lock(group.mutex);
    // The operation before has ended for all.
    wait(lock, operation, [&] { return group.arrived < group.said.size(); });
    group.said[static_cast<size_t>(rank_)] = std::move(bytes);
    group.operations.insert(operation);
    ++group.arrived;
    group.changed.notify_all();
    wait(lock, operation, [&] { return group.arrived == group.said.size(); });
    auto all = group.said;
    const size_t operations = group.operations.size();
    if (++group.left == group.said.size()) {
      group.arrived = group.left = 0;
      group.operations.clear();
      group.changed.notify_all();
    }
    if (operations != 1) throw Error("comm", fmt::format("rank {} called {}, others something else", rank_, operation));
    return all;
  }

  at::Tensor reduced(const char* operation, const at::Tensor& tensor, ReduceOp op) {
    at::Tensor result;
    for (const std::string& bytes : exchange(operation, bytes_of(tensor))) {
      at::Tensor value = at::empty(tensor.sizes(), tensor.options());
      fill(value, bytes);
      if (!result.defined()) {
        result = value;
        continue;
      }
      switch (op) {
        case ReduceOp::kSum:
        case ReduceOp::kMean:
          result.add_(value);
          break;
        case ReduceOp::kMin:
          result = at::minimum(result, value);
          break;
        case ReduceOp::kMax:
          result = at::maximum(result, value);
          break;
      }
    }
    if (op == ReduceOp::kMean) result.div_(world_size());
    return result;
  }

  std::shared_ptr<Group> group_;
  std::unique_ptr<Store> store_;
  int64_t rank_;
  int64_t calls_ = 0;
  int64_t received_ = 0;
  int64_t subgroups_ = 0;
};

/// Runs `body` on `world_size` threads, one a rank, and returns each rank's error; empty where it had none. A rank's
/// error ends the collectives of the others, unless all have the same to say.
inline std::vector<std::string> errors_of_ranks(int64_t world_size,
                                                const std::function<void(ThreadCollective&)>& body) {
  const auto ranks = ThreadCollective::make_group(world_size);
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (const auto& rank : ranks)
    threads.emplace_back([&errors, &body, rank] {
      try {
        body(*rank);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank->rank())] = error.what();
        rank->abort(error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

/// The same, expecting no error.
inline void run_ranks(int64_t world_size, const std::function<void(ThreadCollective&)>& body) {
  const auto errors = errors_of_ranks(world_size, body);
  for (size_t rank = 0; rank < errors.size(); ++rank)
    if (!errors[rank].empty()) throw Error("test", fmt::format("rank {}: {}", rank, errors[rank]));
}

}  // namespace levin::testing
