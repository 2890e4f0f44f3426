#pragma once

#include "tests/support/sim_device/sim_work.h"

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace levin::testing::sim {

/// What one rank gives to a collective.
struct Contribution {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  c10::intrusive_ptr<SimWork> work;
};

/// A collective's arithmetic, on tensors of the CPU: the inputs and outputs of each rank.
using CombineFunction = std::function<void(const std::vector<std::vector<at::Tensor>>& inputs,
                                           std::vector<std::vector<at::Tensor>>& outputs)>;

/// A message to or from another rank.
struct Message {
  bool is_send;
  at::Tensor tensor;
  c10::intrusive_ptr<SimWork> work;
};

/// What NCCL's communicator is: some ranks, threads of this process, that do one thing after the other. An operation's
/// data moves when the last rank has come to it.
class Communicator {
 public:
  /// Takes part as `rank` of `size` in the communicator of this name, and returns when all have come: NCCL's creation
  /// blocks. Throws after `deadline`, when `is_aborted` says so, and when two ranks are on one device.
  static std::shared_ptr<Communicator> join(const std::string& name, int rank, int size, c10::DeviceIndex device,
                                            std::chrono::steady_clock::time_point deadline,
                                            const std::function<bool()>& is_aborted);
  explicit Communicator(int size);

  /// The rank's next collective. `description` must be that of the other ranks; if it is not, all fail.
  void post(int rank, const std::string& description, Contribution contribution, const CombineFunction& combine);
  /// The next message between `rank` and `peer`. Messages of the two, in both directions, are exchanged in the order in
  /// which each posts them: a send waits until the peer has come to the receive, and holds up what comes after it.
  void post_in_order(int rank, int peer, Message message);
  /// The same for messages of a batch, of which no direction holds up the other.
  void post_in_batch(int rank, int peer, Message message);
  /// Ends what this rank waits for. Its peers wait on.
  void abort(int rank, const std::exception_ptr& error);

  /// That the process has not given up; its leak check.
  static int64_t alive();
  ~Communicator();

 private:
  struct Round {
    std::string description;
    std::map<int, Contribution> contributions;
    bool differs = false;
  };
  using Queue = std::deque<Message>;

  std::function<void()> exchange(const Message& send, const Message& receive);
  void match(Queue& mine, Queue& theirs, std::vector<std::function<void()>>& ended);

  const int size_;
  std::mutex mutex_;
  std::condition_variable joined_;
  std::map<int, c10::DeviceIndex> devices_;  ///< of the ranks that have come
  std::deque<Round> rounds_;
  int64_t first_round_ = 0;
  std::vector<int64_t> next_round_;                         ///< by rank
  std::map<std::pair<int, int>, Queue> in_order_;           ///< by (rank, peer)
  std::map<std::tuple<int, int, bool>, Queue> in_batches_;  ///< by (rank, peer, is_send)
};

}  // namespace levin::testing::sim
