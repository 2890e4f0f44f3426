#pragma once

#include "tests/support/sim_device/communicator.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace levin::testing::sim {

/// A process group for ranks that are threads of this process, each with a simulated device of its own, that behaves as
/// NCCL's:
///
/// - a group has one communicator for collectives and batches, and one more for each pair of ranks that sends without a
/// batch;
/// - each is made when it is first needed, which blocks the host until all its ranks have come (counted as a host
/// wait);
/// - its operations run one after the other on a stream of its own, after what the current stream was given before, and
/// the
///   host waits for none but the barrier's;
/// - without a batch, a send holds up what is behind it between the two ranks until the receive has come to its front;
/// - abort() ends this rank's operations with an error; later ones are refused;
/// - a watchdog notes in getError() that an operation takes longer than the time-out, and aborts a while later;
/// - a group that is dropped without shutdown() or abort() leaks its communicators.
class SimNccl final : public c10d::Backend {
 public:
  SimNccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout);
  ~SimNccl() override;

  /// Communicators of the process that were neither shut down nor aborted, those in use included.
  static int64_t communicators_alive() { return Communicator::alive(); }

  /// Code that asks for it is to go the ways that it goes on NCCL.
  const std::string getBackendName() const override { return "nccl"; }
  bool supportsCoalescing() const override { return true; }
  c10d::ErrorType getError() override { return error_; }
  void setTimeout(std::chrono::milliseconds timeout) override;

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;
  /// Tags are not looked at, as NCCL has none.
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override;
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  void abort() override;
  void shutdown() override;

 private:
  /// A communicator and this rank's stream of it.
  struct Connection {
    std::shared_ptr<Communicator> communicator;
    c10::Stream stream;
    int rank;  ///< in the communicator
  };
  struct Posted {
    int peer;
    Message message;
  };

  using ConnectionPointer = std::shared_ptr<Connection>;

  ConnectionPointer connect(const std::string& name, int rank, int size, c10::DeviceIndex device);
  ConnectionPointer connect_all(c10::DeviceIndex device);
  /// Takes them out, for their end.
  std::map<std::string, ConnectionPointer> take_connections();
  c10::intrusive_ptr<SimWork> begin(const Connection& connection, c10d::OpType operation,
                                    const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs);
  c10::intrusive_ptr<c10d::Work> collective(c10d::OpType operation, const std::string& description,
                                            std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs,
                                            const CombineFunction& combine);
  c10::intrusive_ptr<c10d::Work> message(std::vector<at::Tensor>& tensors, int peer, bool is_send);
  void check_usable() const;
  void end_all(const std::string& reason);
  void watch();

  const c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds timeout_;
  std::string group_;  ///< of this process, known to all ranks
  bool is_batch_ = false;
  std::vector<Posted> batch_;

  std::atomic<bool> is_aborted_{false};
  std::atomic<c10d::ErrorType> error_{c10d::ErrorType::SUCCESS};
  mutable std::mutex mutex_;  ///< of what follows, which other threads end
  std::map<std::string, ConnectionPointer> connections_;
  std::condition_variable changed_;
  std::string reason_;  ///< why it was aborted
  bool is_over_ = false;
  std::vector<c10::intrusive_ptr<SimWork>> under_way_;
  std::thread watchdog_;
};

}  // namespace levin::testing::sim
