#include <levin/strategies/comm/abortable_backend.h>

#include <levin/core/base/mutex.h>
#include <levin/strategies/comm/broken_pipe_scope.h>
#include <levin/strategies/comm/c10d_error.h>
#include <levin/strategies/comm/exchange_collectives.h>

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace levin {
namespace {

using WorkPointer = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;

std::exception_ptr backend_error(const std::string& message) {
  return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, message));
}

std::exception_ptr aborted_error() { return backend_error("the group was aborted"); }

/// What Gloo throws as c10d's other backends throw it: a plain runtime error says nothing of where it comes from.
std::exception_ptr as_backend_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::DistError&) {
    return error;
  } catch (const std::exception& of_gloo) {
    return backend_error(c10d_message(of_gloo));
  } catch (...) {
    return error;
  }
}

/// A work that can be ended from outside.
class AbortableWork : public c10d::Work {
 public:
  AbortableWork(int rank, WorkPointer inner) : c10d::Work(rank, inner->retrieveOpType()), inner_(std::move(inner)) {}
  virtual void end_with_error() = 0;
  /// Whether the backend itself is through with it, aborted or not.
  virtual bool backend_is_done() = 0;

  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }

 protected:
  WorkPointer inner_;
};

/// A collective: Gloo's threads complete its future, whereupon this one's is completed too, unless an abort came first.
class AbortableCollective : public AbortableWork {
 public:
  static c10::intrusive_ptr<AbortableWork> start(int rank, WorkPointer inner) {
    auto inner_future = inner->getFuture();
    auto work = c10::make_intrusive<AbortableCollective>(rank, std::move(inner), inner_future->elementType());
    inner_future->addCallback(
        [work](at::ivalue::Future& done) {
          work->complete(done.hasError() ? as_backend_error(done.exception_ptr()) : nullptr, done);
        },
        /*uses_future=*/false);
    return work;
  }

  AbortableCollective(int rank, WorkPointer inner, const at::TypePtr& type)
      : AbortableWork(rank, std::move(inner)), future_(c10::make_intrusive<at::ivalue::Future>(type)) {}

  void end_with_error() override {
    if (!claim()) return;
    const std::exception_ptr error = aborted_error();
    finish(error);
    future_->setError(error);
  }
  bool backend_is_done() override { return backend_is_done_; }
  /// Called by wait() when all went well: on CUDA the current stream waits for the result.
  void synchronize() override { inner_->synchronize(); }
  Tensors result() override { return inner_->result(); }
  c10::intrusive_ptr<at::ivalue::Future> getFuture() override { return future_; }

 private:
  /// The first of completion and abort settles the work.
  bool claim() { return !settled_.exchange(true); }

  void complete(const std::exception_ptr& error, at::ivalue::Future& done) {
    backend_is_done_ = true;
    if (!claim()) return;
    finish(error);
    if (error)
      future_->setError(error);
    else
      future_->markCompleted(done.value());
  }

  c10::intrusive_ptr<at::ivalue::Future> future_;
  std::atomic<bool> settled_{false};
  std::atomic<bool> backend_is_done_{false};
};

/// A send or a receive: it has no future, but knows how to abort. It is through only once somebody has waited for it.
class AbortableTransfer : public AbortableWork {
 public:
  AbortableTransfer(int rank, WorkPointer inner) : AbortableWork(rank, std::move(inner)) {}

  void end_with_error() override {
    aborted_ = true;
    inner_->abort();
  }
  bool backend_is_done() override { return waited_; }
  bool isCompleted() override { return waited_; }
  bool isSuccess() const override { return inner_->isSuccess(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  bool wait(std::chrono::milliseconds timeout) override {
    if (waited_) return true;
    bool completed = false;
    try {
      completed = !aborted_ && inner_->wait(timeout);
    } catch (const std::exception&) {
      std::rethrow_exception(as_backend_error(std::current_exception()));
    }
    if (!completed) std::rethrow_exception(aborted_error());
    waited_ = true;
    return true;
  }

 private:
  std::atomic<bool> aborted_{false};
  std::atomic<bool> waited_{false};
};

class AbortableBackend : public c10d::Backend {
 public:
  explicit AbortableBackend(c10::intrusive_ptr<c10d::Backend> inner)
      : c10d::Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

  ~AbortableBackend() override {
    const MutexLock lock(mutex_);
    const bool stuck =
        std::any_of(under_way_.begin(), under_way_.end(), [](const auto& work) { return !work->backend_is_done(); });
    // A backend's destructor waits for its threads, and those wait for ranks that may never come.
    if (stuck)
      std::thread([inner = std::move(inner_), works = std::move(under_way_)]() mutable { inner.reset(); }).detach();
  }

  void abort() override {
    std::vector<c10::intrusive_ptr<AbortableWork>> ended;
    {
      const MutexLock lock(mutex_);
      aborted_ = true;
      ended = under_way_;
    }
    // Without the lock: what waits for a future may call this backend.
    for (const auto& work : ended) work->end_with_error();
  }

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }
  void enableCollectivesTiming() override { inner_->enableCollectivesTiming(); }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override {
    inner_->monitoredBarrier(options, wait_all_ranks);
  }

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return collective([&] { return inner_->broadcast(tensors, options); });
  }
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return collective([&] { return inner_->allreduce(tensors, options); });
  }
  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return collective([&] { return inner_->allreduce_sparse(tensors, options); });
  }
  WorkPointer allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return collective([&] { return inner_->allreduce_coalesced(tensors, options); });
  }
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return collective([&] { return inner_->reduce(tensors, options); });
  }
  WorkPointer allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return collective([&] { return inner_->allgather(outputs, inputs, options); });
  }
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    // Gloo's works on its own devices only.
    if (!output.is_cpu()) return collective([&] { return inner_->_allgather_base(output, input, options); });
    return start_all_gather(*this, output, input, next_exchange_tag());
  }
  WorkPointer allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) override {
    return collective([&] { return inner_->allgather_coalesced(outputs, inputs, options); });
  }
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override {
    return collective([&] { return inner_->allgather_into_tensor_coalesced(outputs, inputs, options); });
  }
  WorkPointer gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return collective([&] { return inner_->gather(outputs, inputs, options); });
  }
  WorkPointer scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override {
    return collective([&] { return inner_->scatter(outputs, inputs, options); });
  }
  WorkPointer reduce_scatter(Tensors& outputs, TensorLists& inputs,
                             const c10d::ReduceScatterOptions& options) override {
    return collective([&] { return inner_->reduce_scatter(outputs, inputs, options); });
  }
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override {
    // Gloo's own work for it can neither be aborted nor has a future, and is slow.
    return start_reduce_scatter(*this, output, input, options.reduceOp, next_exchange_tag());
  }
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                            std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override {
    return collective([&] { return inner_->alltoall_base(output, input, output_sizes, input_sizes, options); });
  }
  WorkPointer barrier(const c10d::BarrierOptions& options) override {
    return collective([&] { return inner_->barrier(options); });
  }
  WorkPointer send(Tensors& tensors, int to, int tag) override {
    return transfer([&] { return inner_->send(tensors, to, tag); });
  }
  WorkPointer recv(Tensors& tensors, int from, int tag) override {
    return transfer([&] { return inner_->recv(tensors, from, tag); });
  }
  WorkPointer recvAnysource(Tensors& tensors, int tag) override {
    return transfer([&] { return inner_->recvAnysource(tensors, tag); });
  }

 private:
  template <typename Start>
  WorkPointer collective(Start&& start) {
    return track([&] { return AbortableCollective::start(rank_, start()); });
  }
  template <typename Start>
  WorkPointer transfer(Start&& start) {
    const BrokenPipeScope broken_pipe;  // a transfer begins in the thread that asks for it
    return track(
        [&]() -> c10::intrusive_ptr<AbortableWork> { return c10::make_intrusive<AbortableTransfer>(rank_, start()); });
  }

  /// Starting takes no longer than queueing, so the lock may be held: no abort can slip in between.
  template <typename Make>
  WorkPointer track(Make&& make) {
    const MutexLock lock(mutex_);
    if (aborted_) std::rethrow_exception(aborted_error());
    std::erase_if(under_way_, [](const auto& work) { return work->backend_is_done(); });
    under_way_.push_back(make());
    return under_way_.back();
  }

  /// The same on every rank, as all start the same exchanges in the same order.
  int next_exchange_tag() {
    return kFirstReservedTag + exchanges_.fetch_add(1, std::memory_order_relaxed) % kFirstReservedTag;
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  std::atomic<int> exchanges_{0};
  Mutex mutex_;
  bool aborted_ LEVIN_GUARDED_BY(mutex_) = false;
  std::vector<c10::intrusive_ptr<AbortableWork>> under_way_ LEVIN_GUARDED_BY(mutex_);  // and some that have ended since
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_abortable(c10::intrusive_ptr<c10d::Backend> backend) {
  return c10::make_intrusive<AbortableBackend>(std::move(backend));
}

}  // namespace levin
