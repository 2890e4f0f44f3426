#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace levin {

/// Reduction of the values of all ranks to one.
enum class ReduceOp { kSum, kMean, kMin, kMax };

/// A collective under way. Destroying it without waiting does not cancel it.
class Work {
 public:
  virtual ~Work() = default;
  /// Blocks until done (on CUDA: until the current stream may use the result). Throws CommunicationError when the
  /// collective failed.
  virtual void wait() = 0;
  virtual bool is_completed() const = 0;
};

/// Timeout of a get whose key is in the store already.
inline constexpr std::chrono::milliseconds kAnswerTime{5000};

/// Key-value exchange between ranks beside the collectives: rendezvous, stop requests, failures.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Returns the value of a key; waits for it, at most `timeout`.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  /// Adds to a counter and returns its new value.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
  virtual bool contains(const std::string& key) = 0;
  /// Opens a second connection, so that a helper thread never blocks this one.
  virtual std::unique_ptr<Store> clone() const = 0;
};

/// Communication between the ranks of one group. Every rank calls the same methods in the same order with tensors of
/// the same shapes and types. Calls return at once; results are there after Work::wait.
class Collective {
 public:
  virtual ~Collective() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;

  /// Reduces `tensor` over all ranks, in place.
  virtual std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op) = 0;
  /// Copies `tensor` from `root` to all ranks, in place.
  virtual std::unique_ptr<Work> broadcast(at::Tensor tensor, int64_t root) = 0;
  /// Gathers flat tensors: `output` holds world_size times the elements of `input`, in rank order.
  virtual std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input) = 0;
  /// Reduces flat tensors: `input` holds world_size times the elements of `output`; each rank gets its part of the
  /// reduction.
  virtual std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) = 0;
  virtual std::unique_ptr<Work> send(at::Tensor tensor, int64_t to, int64_t tag) = 0;
  virtual std::unique_ptr<Work> receive(at::Tensor tensor, int64_t from, int64_t tag) = 0;
  /// Waits for all ranks.
  virtual void barrier() = 0;

  /// Sends bytes from `root` to all ranks and returns them; blocks.
  virtual std::string broadcast_bytes(const std::string& bytes, int64_t root) = 0;
  /// Returns the bytes of every rank, in rank order; blocks.
  virtual std::vector<std::string> gather_bytes(const std::string& bytes) = 0;

  /// Makes a group of some of these ranks. Every rank of this group calls it; ranks outside the new one get nullptr.
  virtual std::shared_ptr<Collective> subgroup(std::span<const int64_t> ranks) = 0;
  /// Ends all collectives under way with an error; may be called from any thread.
  virtual void abort(const std::string& reason) = 0;
  virtual Store& store() = 0;
};

}  // namespace levin
