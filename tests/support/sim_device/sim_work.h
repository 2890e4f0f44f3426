#pragma once

#include "tests/support/sim_device/vector_clock.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <exception>
#include <string>
#include <vector>

namespace levin::testing::sim {

/// An operation of a process group on one rank. wait() makes the current stream wait for it. Kernels of the simulated
/// devices run when they are launched, so that a thread that launches work on the result must have it: wait() blocks
/// until all ranks have come, which a real device would do in the stream. It is no host wait and is not counted as one.
class SimWork final : public c10d::Work {
 public:
  /// `stream` is the communicator's on this rank, `clock` what it will have done with the operation.
  SimWork(int rank, c10d::OpType operation, std::vector<at::Tensor> outputs, const c10::Stream& stream,
          const VectorClock& clock, std::chrono::steady_clock::time_point deadline);

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

  // --- For the communicator ---
  VectorClock clock() const;
  /// The data come from a peer's work: what that came after, this does, and what its stream does next.
  void come_after(const VectorClock& peer);
  /// At most one of these has an effect.
  void complete();
  void fail(const std::exception_ptr& error);

  std::chrono::steady_clock::time_point deadline() const { return deadline_; }

 private:
  std::vector<at::Tensor> outputs_;
  const c10::Stream stream_;
  VectorClock clock_;  ///< guarded by the hardware's mutex
  const std::chrono::steady_clock::time_point deadline_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::atomic<bool> ended_ = false;
};

/// What endCoalescing returns: waits for each of some operations.
class SimWorkList final : public c10d::Work {
 public:
  explicit SimWorkList(std::vector<c10::intrusive_ptr<SimWork>> works)
      : Work(-1, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout) override;

 private:
  std::vector<c10::intrusive_ptr<SimWork>> works_;
};

}  // namespace levin::testing::sim
