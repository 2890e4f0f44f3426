#include <levin/strategies/comm/exchange_collectives.h>

#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

namespace levin {
namespace {

using WorkPointer = c10::intrusive_ptr<c10d::Work>;

/// A tensor to and from every other rank.
class Exchange : public c10d::Work {
 public:
  bool isCompleted() override { return waited_; }

  bool wait(std::chrono::milliseconds timeout) override {
    if (waited_) return true;
    for (const auto& receive : receives_) receive->wait(timeout);
    finish();
    for (const auto& send : sends_) send->wait(timeout);
    waited_ = true;
    return true;
  }

 protected:
  Exchange(const c10d::Backend& backend, c10d::OpType type)
      : c10d::Work(backend.getRank(), type), ranks_(backend.getSize()) {}

  /// `arriving[rank]` is from that rank, `leaving(rank)` for it.
  template <class Leaving>
  void start(c10d::Backend& backend, const std::vector<at::Tensor>& arriving, Leaving&& leaving, int tag) {
    for (int step = 1; step < ranks_; ++step) {
      // All ranks start with another partner.
      const int to = (rank_ + step) % ranks_;
      const int from = (rank_ + ranks_ - step) % ranks_;
      std::vector<at::Tensor> in = {arriving[static_cast<size_t>(from)]};
      std::vector<at::Tensor> out = {leaving(to)};
      receives_.push_back(backend.recv(in, from, tag));
      sends_.push_back(backend.send(out, to, tag));
    }
  }
  /// Everything has arrived.
  virtual void finish() {}

  const int ranks_;

 private:
  std::vector<WorkPointer> receives_;
  std::vector<WorkPointer> sends_;
  std::atomic<bool> waited_{false};
};

class ExchangeReduceScatter final : public Exchange {
 public:
  ExchangeReduceScatter(c10d::Backend& backend, at::Tensor output, const at::Tensor& input, c10d::ReduceOp op, int tag)
      : Exchange(backend, c10d::OpType::_REDUCE_SCATTER_BASE), output_(output.view({-1})), op_(std::move(op)) {
    const bool known = op_ == c10d::ReduceOp::SUM || op_ == c10d::ReduceOp::MIN || op_ == c10d::ReduceOp::MAX;
    TORCH_CHECK(known, "reduce_scatter over Gloo knows sum, minimum and maximum");
    TORCH_CHECK(input.numel() == output.numel() * ranks_, "the input must hold a part for every rank");
    const std::vector<at::Tensor> own_parts = input.view({-1}).chunk(ranks_);
    for (int rank = 0; rank < ranks_; ++rank) {
      const at::Tensor& own = own_parts[static_cast<size_t>(rank)];
      parts_.push_back(rank == rank_ ? own : at::empty_like(own));
    }
    start(
        backend, parts_, [&](int to) { return own_parts[static_cast<size_t>(to)]; }, tag);
  }

 private:
  void finish() override {
    if (ranks_ == 1) output_.copy_(parts_.front());
    at::Tensor sum = parts_.front();
    for (int rank = 1; rank < ranks_; ++rank) {
      // The output may be this rank's part of the input, which is read before it is written.
      at::Tensor target = rank >= rank_ ? output_ : sum;
      combine(target, sum, parts_[static_cast<size_t>(rank)]);
      sum = target;
    }
    parts_.clear();
  }

  void combine(at::Tensor& result, const at::Tensor& a, const at::Tensor& b) const {
    if (op_.op_ == c10d::ReduceOp::SUM)
      at::add_out(result, a, b);
    else if (op_.op_ == c10d::ReduceOp::MIN)
      at::minimum_out(result, a, b);
    else
      at::maximum_out(result, a, b);
  }

  at::Tensor output_;
  c10d::ReduceOp op_;
  std::vector<at::Tensor> parts_;  ///< of every rank, for this one
};

class ExchangeAllGather final : public Exchange {
 public:
  ExchangeAllGather(c10d::Backend& backend, const at::Tensor& output, const at::Tensor& input, int tag)
      : Exchange(backend, c10d::OpType::_ALLGATHER_BASE) {
    TORCH_CHECK(output.numel() == input.numel() * ranks_, "the output must hold a part for every rank");
    const std::vector<at::Tensor> parts = output.view({-1}).chunk(ranks_);
    const at::Tensor& own = parts[static_cast<size_t>(rank_)];
    if (own.data_ptr() != input.data_ptr()) own.copy_(input.view({-1}));
    start(
        backend, parts, [&](int) { return own; }, tag);
  }
};

}  // namespace

WorkPointer start_reduce_scatter(c10d::Backend& backend, at::Tensor output, const at::Tensor& input,
                                 const c10d::ReduceOp& op, int tag) {
  return c10::make_intrusive<ExchangeReduceScatter>(backend, std::move(output), input, op, tag);
}

WorkPointer start_all_gather(c10d::Backend& backend, const at::Tensor& output, const at::Tensor& input, int tag) {
  return c10::make_intrusive<ExchangeAllGather>(backend, output, input, tag);
}

}  // namespace levin
