#include "tests/support/sim_device/sim_work.h"

#include "tests/support/sim_device/hardware.h"
#include "tests/support/sim_device/host_wait.h"
#include "tests/support/sim_device/streams.h"

#include <ATen/core/jit_type.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace levin::testing::sim {

SimWork::SimWork(int rank, c10d::OpType operation, std::vector<at::Tensor> outputs, const c10::Stream& stream,
                 const VectorClock& clock, std::chrono::steady_clock::time_point deadline)
    : Work(rank, operation),
      outputs_(std::move(outputs)),
      stream_(stream),
      clock_(clock),
      deadline_(deadline),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(),
                                                       std::vector<c10::Device>{stream.device()})) {}

bool SimWork::isCompleted() {
  const std::lock_guard lock(mutex_);
  return completed_;
}

bool SimWork::isSuccess() const {
  const std::lock_guard lock(mutex_);
  return completed_ && !exception_;
}

bool SimWork::wait(std::chrono::milliseconds) {
  {
    std::unique_lock lock(mutex_);
    cv_.wait(lock, [&] { return completed_; });
    if (exception_) std::rethrow_exception(exception_);
  }
  if (retrieveOpType() == c10d::OpType::BARRIER) host_waits_for_stream(Wait::kBarrier, index_of(stream_));
  const std::lock_guard lock(Hardware::instance().mutex());
  Streams& streams = Streams::instance();
  streams.order_after(index_of(streams.current(stream_.device_index())), clock_);
  return true;
}

VectorClock SimWork::clock() const {
  const std::lock_guard lock(Hardware::instance().mutex());
  return clock_;
}

void SimWork::come_after(const VectorClock& peer) {
  const std::lock_guard lock(Hardware::instance().mutex());
  clock_.merge(peer);
  Streams::instance().order_after(index_of(stream_), peer);
}

void SimWork::complete() {
  if (ended_.exchange(true)) return;
  {
    // The future's events belong to the communicator's stream. It looks at the tensors, whose memory is the rank's to
    // free once it has waited: this comes first.
    const c10::StreamGuard guard(stream_);
    future_->markCompleted(c10::IValue(outputs_));
  }
  finish(nullptr);
}

void SimWork::fail(const std::exception_ptr& error) {
  if (ended_.exchange(true)) return;
  future_->setError(error);
  finish(error);
}

bool SimWorkList::isCompleted() {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isCompleted(); });
}

bool SimWorkList::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isSuccess(); });
}

bool SimWorkList::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  return true;
}

}  // namespace levin::testing::sim
