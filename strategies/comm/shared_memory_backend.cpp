#include <levin/strategies/comm/shared_memory_backend.h>

#include <levin/core/base/error.h>
#include <levin/strategies/comm/message_exchange.h>
#include <levin/strategies/comm/shared_memory_team.h>

#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;

/// How long a wait for a message helps to move it before it sleeps until the helper thread has.
constexpr std::chrono::microseconds kHelpTime{50};

c10::intrusive_ptr<c10::ivalue::Future> make_future() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
}

/// A collective, which is done when the call returns. Reducer asks for the future and takes the first tensor in it.
class FinishedWork : public c10d::Work {
 public:
  FinishedWork(c10d::OpType operation, Tensors outputs) : Work(-1, operation), outputs_(std::move(outputs)) {
    finish();
  }

  bool wait(std::chrono::milliseconds) override { return true; }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = make_future();
    future->markCompleted(outputs_);
    return future;
  }

 private:
  Tensors outputs_;
};

/// A message under way.
class MessageWork : public c10d::Work {
 public:
  MessageWork(c10d::OpType operation, MessageExchange& messages, Tensors outputs)
      : Work(-1, operation), messages_(messages), outputs_(std::move(outputs)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    const auto help_until = std::chrono::steady_clock::now() + kHelpTime;
    while (!isCompleted() && std::chrono::steady_clock::now() < help_until) messages_.progress();
    return Work::wait(timeout);
  }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

  void done(const std::exception_ptr& error) {
    if (error)
      future_->setError(error);
    else
      future_->markCompleted(outputs_);
    finish(error);
  }

 private:
  MessageExchange& messages_;
  Tensors outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_ = make_future();
};

/// A tensor's elements without gaps: the tensor itself or, where it has gaps or another order, a copy.
class Dense {
 public:
  explicit Dense(const at::Tensor& tensor) : original_(tensor), dense_(tensor) {
    if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return;
    dense_ = tensor.detach().resolve_conj().resolve_neg().contiguous();
  }

  const at::Tensor& tensor() const { return dense_; }
  std::byte* data() const { return static_cast<std::byte*>(dense_.data_ptr()); }
  SharedMemoryTeam::Elements elements() const { return {dense_.data_ptr(), dense_.numel(), dense_.scalar_type()}; }

  /// After `data()` was written to.
  void copy_back() const {
    if (dense_.is_same(original_)) return;
    const c10::InferenceMode guard;  // the tensor may be one of inference mode, or a leaf that takes gradients
    original_.copy_(dense_);
  }

 private:
  at::Tensor original_;
  at::Tensor dense_;
};

/// A copy if the input shares memory with the output, unless it is the very place that holds the rank's own part.
Dense apart_from(const at::Tensor& input, const std::byte* output, int64_t output_bytes, const std::byte* own_part) {
  Dense dense(input);
  const std::byte* begin = dense.data();
  if (begin == own_part || begin >= output + output_bytes || output >= begin + input.nbytes()) return dense;
  const at::NoGradGuard guard;
  return Dense(dense.tensor().clone());
}

class SharedMemoryBackend : public c10d::Backend {
 public:
  SharedMemoryBackend(std::shared_ptr<SharedMemoryTeam> team, int64_t rank, std::chrono::milliseconds timeout)
      : Backend(static_cast<int>(rank), static_cast<int>(team->size())), team_(std::move(team)), timeout_(timeout) {}

  const std::string getBackendName() const override { return "shared_memory"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void abort() override { team_->abort(fmt::format("rank {} aborted the process group", rank_)); }

  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    for (const at::Tensor& tensor : tensors) {
      check(tensor, "all_reduce");
      const Dense data(as_reducible(tensor, options.reduceOp));
      team_->all_reduce(caller(options.timeout), data.elements(), op_of(options.reduceOp));
      data.copy_back();
    }
    return finished(c10d::OpType::ALLREDUCE, tensors);
  }

  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(Tensors& tensors,
                                                     const c10d::AllreduceCoalescedOptions& options) override {
    if (options.reduceOp.op_ != c10d::ReduceOp::PREMUL_SUM) return allreduce(tensors, options);
    // In the order in memory, which is the same on all ranks.
    std::vector<SharedMemoryTeam::Elements> parts;
    parts.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) {
      check(tensor, "all_reduce");
      if (!tensor.is_non_overlapping_and_dense())
        throw Error("comm", "all_reduce of a list was given a tensor with gaps; valid: tensors without");
      parts.push_back({tensor.mutable_data_ptr(), tensor.numel(), tensor.scalar_type()});
    }
    const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(options.reduceOp.supplement_.get());
    LEVIN_CHECK(factor != nullptr, "a scaled sum without its factor");
    team_->all_reduce_scaled(caller(options.timeout), parts, factor->double_factor);
    return finished(c10d::OpType::ALLREDUCE_COALESCED, tensors);
  }

  c10::intrusive_ptr<c10d::Work> reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const at::Tensor& tensor = only(tensors, "reduce");
    const Dense data(as_reducible(tensor, options.reduceOp));
    team_->reduce(caller(options.timeout), data.elements(), op_of(options.reduceOp), options.rootRank);
    if (rank_ == options.rootRank) data.copy_back();
    return finished(c10d::OpType::REDUCE, tensors);
  }

  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const at::Tensor& tensor = only(tensors, "broadcast");
    const Dense data(tensor);
    team_->broadcast(caller(options.timeout), data.elements(), options.rootRank);
    if (rank_ != options.rootRank) data.copy_back();
    return finished(c10d::OpType::BROADCAST, tensors);
  }

  c10::intrusive_ptr<c10d::Work> allgather(TensorLists& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& options) override {
    const at::Tensor& input = only(inputs, "all_gather");
    const Tensors& list = only_list(outputs, input, "all_gather");
    gather_into(list, input, [&](std::span<void* const> addresses, const SharedMemoryTeam::Elements& elements) {
      team_->all_gather(caller(options.timeout), addresses, elements);
    });
    return finished(c10d::OpType::ALLGATHER, list);
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    check(input, "all_gather");
    check_whole(output, input, "all_gather");
    const Dense to(output);
    const auto part = static_cast<int64_t>(input.nbytes());
    const Dense from = apart_from(input, to.data(), part * size_, to.data() + rank_ * part);
    std::vector<void*> addresses;
    for (int64_t rank = 0; rank < size_; ++rank) addresses.push_back(to.data() + rank * part);
    team_->all_gather(caller(options.timeout), addresses, from.elements());
    to.copy_back();
    return finished(c10d::OpType::_ALLGATHER_BASE, {output});
  }

  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                 const c10d::AllgatherOptions& options) override {
    check_same_number(outputs, inputs, "all_gather");
    for (size_t i = 0; i < outputs.size(); ++i) _allgather_base(outputs[i], inputs[i], options);
    return finished(c10d::OpType::COALESCED, outputs);
  }

  c10::intrusive_ptr<c10d::Work> gather(TensorLists& outputs, Tensors& inputs,
                                        const c10d::GatherOptions& options) override {
    const at::Tensor& input = only(inputs, "gather");
    const Tensors list = rank_ == options.rootRank ? only_list(outputs, input, "gather") : Tensors{};
    gather_into(list, input, [&](std::span<void* const> addresses, const SharedMemoryTeam::Elements& elements) {
      team_->gather(caller(options.timeout), addresses, elements, options.rootRank);
    });
    return finished(c10d::OpType::GATHER, list);
  }

  c10::intrusive_ptr<c10d::Work> scatter(Tensors& outputs, TensorLists& inputs,
                                         const c10d::ScatterOptions& options) override {
    const at::Tensor& output = only(outputs, "scatter");
    const Dense to(output);
    at::Tensor input;
    if (rank_ == options.rootRank) input = flatten(only_list(inputs, output, "scatter"));
    team_->scatter(caller(options.timeout), to.elements(), input.defined() ? input.const_data_ptr() : nullptr,
                   options.rootRank);
    to.copy_back();
    return finished(c10d::OpType::SCATTER, outputs);
  }

  c10::intrusive_ptr<c10d::Work> reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                const c10d::ReduceScatterOptions& options) override {
    const at::Tensor& output = only(outputs, "reduce_scatter");
    const at::Tensor input = flatten(only_list(inputs, output, "reduce_scatter"));
    const Dense to(as_reducible(output, options.reduceOp));
    team_->reduce_scatter(caller(options.timeout), to.elements(), input.const_data_ptr(), op_of(options.reduceOp));
    to.copy_back();
    return finished(c10d::OpType::REDUCE_SCATTER, outputs);
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override {
    check(output, "reduce_scatter");
    check_whole(input, output, "reduce_scatter");
    const Dense to(as_reducible(output, options.reduceOp));
    const auto part = static_cast<int64_t>(output.nbytes());
    const auto* input_begin = static_cast<const std::byte*>(input.const_data_ptr());
    const Dense from =
        to.data() == input_begin + rank_ * part ? Dense(input) : apart_from(input, to.data(), part, nullptr);
    team_->reduce_scatter(caller(options.timeout), to.elements(), from.data(), op_of(options.reduceOp));
    to.copy_back();
    return finished(c10d::OpType::_REDUCE_SCATTER_BASE, {output});
  }

  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                 const c10d::ReduceScatterOptions& options) override {
    check_same_number(outputs, inputs, "reduce_scatter");
    for (size_t i = 0; i < outputs.size(); ++i) _reduce_scatter_base(outputs[i], inputs[i], options);
    return finished(c10d::OpType::COALESCED, outputs);
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    team_->barrier(caller(options.timeout));
    return finished(c10d::OpType::BARRIER, {});
  }

  c10::intrusive_ptr<c10d::Work> send(Tensors& tensors, int to, int tag) override {
    const at::Tensor& tensor = only(tensors, "send");
    check_peer(to, "send");
    auto work = c10::make_intrusive<MessageWork>(c10d::OpType::SEND, messages(), tensors);
    messages().send(Dense(tensor).tensor(), to, tag, timeout_,
                    [work](const std::exception_ptr& error) { work->done(error); });
    return work;
  }

  c10::intrusive_ptr<c10d::Work> recv(Tensors& tensors, int from, int tag) override {
    const at::Tensor& tensor = only(tensors, "receive");
    check_peer(from, "receive");
    const Dense data(tensor);
    auto work = c10::make_intrusive<MessageWork>(c10d::OpType::RECV, messages(), tensors);
    messages().receive(data.tensor(), from, tag, timeout_, [work, data](const std::exception_ptr& error) {
      if (!error) data.copy_back();
      work->done(error);
    });
    return work;
  }

 private:
  SharedMemoryTeam::Caller caller(std::chrono::milliseconds timeout) const {
    return {rank_, timeout.count() > 0 ? timeout : timeout_};
  }

  static c10::intrusive_ptr<c10d::Work> finished(c10d::OpType operation, Tensors outputs) {
    return c10::make_intrusive<FinishedWork>(operation, std::move(outputs));
  }

  MessageExchange& messages() {
    std::call_once(messages_made_, [this] { messages_ = std::make_unique<MessageExchange>(team_, rank_); });
    return *messages_;
  }

  static ReduceOp op_of(const c10d::ReduceOp& op) {
    switch (op.op_) {
      case c10d::ReduceOp::SUM:
        return ReduceOp::kSum;
      case c10d::ReduceOp::AVG:
        return ReduceOp::kMean;
      case c10d::ReduceOp::MIN:
        return ReduceOp::kMin;
      case c10d::ReduceOp::MAX:
        return ReduceOp::kMax;
      default:
        throw Error("comm", fmt::format("no such reduction; got number {} of c10d's ReduceOp; valid: SUM, AVG, "
                                        "MIN, MAX",
                                        static_cast<int>(op.op_)));
    }
  }

  /// Complex numbers add up as twice as many real ones.
  static at::Tensor as_reducible(const at::Tensor& tensor, const c10d::ReduceOp& op) {
    const bool adds = op.op_ == c10d::ReduceOp::SUM || op.op_ == c10d::ReduceOp::AVG;
    return adds && tensor.is_complex() && !tensor.is_conj() ? at::view_as_real(tensor) : tensor;
  }

  static void check(const at::Tensor& tensor, const char* operation) {
    if (tensor.device().is_cpu() && tensor.layout() == at::kStrided) return;
    throw Error(
        "comm",
        fmt::format("{} takes dense CPU tensors; got a {} tensor on {}; hint: the backend nccl serves CUDA tensors",
                    operation, tensor.layout() == at::kStrided ? "dense" : "sparse", tensor.device().str()));
  }

  static const at::Tensor& only(const Tensors& tensors, const char* operation) {
    if (tensors.size() != 1)
      throw Error("comm", fmt::format("{} takes one tensor a rank; got {}", operation, tensors.size()));
    check(tensors[0], operation);
    return tensors[0];
  }

  /// A list of one tensor a rank, each like `part`.
  const Tensors& only_list(const TensorLists& lists, const at::Tensor& part, const char* operation) const {
    if (lists.size() != 1 || static_cast<int>(lists[0].size()) != size_)
      throw Error("comm", fmt::format("{} takes one list of one tensor a rank; got {} lists, the first of {}; "
                                      "valid: 1 list of {}",
                                      operation, lists.size(), lists.empty() ? 0 : lists[0].size(), size_));
    for (const at::Tensor& tensor : lists[0]) {
      check(tensor, operation);
      if (tensor.numel() == part.numel() && tensor.scalar_type() == part.scalar_type()) continue;
      throw Error("comm", fmt::format("{}: the tensors of all ranks must be alike; got {} and {}", operation,
                                      describe(tensor), describe(part)));
    }
    return lists[0];
  }

  void check_whole(const at::Tensor& whole, const at::Tensor& part, const char* operation) const {
    check(whole, operation);
    if (whole.numel() == part.numel() * size_ && whole.scalar_type() == part.scalar_type()) return;
    throw Error("comm", fmt::format("{}: the whole must be {} times the part; got {} and {}", operation, size_,
                                    describe(whole), describe(part)));
  }

  static void check_same_number(const Tensors& outputs, const Tensors& inputs, const char* operation) {
    if (outputs.size() != inputs.size())
      throw Error("comm", fmt::format("{} takes as many outputs as inputs; got {} and {}", operation, outputs.size(),
                                      inputs.size()));
  }

  void check_peer(int rank, const char* operation) const {
    if (rank < 0 || rank >= size_ || rank == rank_)
      throw Error("comm", fmt::format("rank {} cannot {} to or from rank {}; valid: another one of 0 to {}", rank_,
                                      operation, rank, size_ - 1));
  }

  static std::string describe(const at::Tensor& tensor) {
    return fmt::format("{} {} elements", tensor.numel(), c10::toString(tensor.scalar_type()));
  }

  static at::Tensor flatten(const Tensors& tensors) {
    const at::NoGradGuard guard;
    Tensors flat;
    flat.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape(-1));
    return at::cat(flat).resolve_conj().resolve_neg();
  }

  /// Runs `operation` on the addresses of `list` (empty where this rank gets nothing).
  template <class Operation>
  void gather_into(const Tensors& list, const at::Tensor& input, Operation operation) const {
    std::vector<Dense> outputs;
    std::vector<void*> addresses;
    outputs.reserve(list.size());
    for (const at::Tensor& tensor : list) addresses.push_back(outputs.emplace_back(tensor).data());
    Dense from(input);
    for (const Dense& output : outputs)
      from = apart_from(from.tensor(), output.data(), static_cast<int64_t>(input.nbytes()),
                        static_cast<const std::byte*>(outputs[rank_].data()));
    operation(addresses, from.elements());
    for (const Dense& output : outputs) output.copy_back();
  }

  std::shared_ptr<SharedMemoryTeam> team_;
  std::chrono::milliseconds timeout_;
  std::once_flag messages_made_;
  std::unique_ptr<MessageExchange> messages_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_shared_memory_backend(std::shared_ptr<SharedMemoryTeam> team, int64_t rank,
                                                             std::chrono::milliseconds timeout) {
  if (rank < 0 || rank >= team->size())
    throw Error("comm", fmt::format("no such rank in the team; got {}; valid: 0 to {}", rank, team->size() - 1));
  return c10::make_intrusive<SharedMemoryBackend>(std::move(team), rank, timeout);
}

}  // namespace levin
