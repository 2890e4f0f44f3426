#include <levin/strategies/comm/exchange_reduce_scatter.h>

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

class ExchangeReduceScatter : public c10d::Work {
 public:
  ExchangeReduceScatter(c10d::Backend& backend, at::Tensor output, const at::Tensor& input, c10d::ReduceOp op, int tag)
      : c10d::Work(backend.getRank(), c10d::OpType::_REDUCE_SCATTER_BASE),
        output_(std::move(output)),
        op_(std::move(op)) {
    const bool known = op_ == c10d::ReduceOp::SUM || op_ == c10d::ReduceOp::MIN || op_ == c10d::ReduceOp::MAX;
    TORCH_CHECK(known, "reduce_scatter over Gloo knows sum, minimum and maximum");
    TORCH_CHECK(input.numel() == output_.numel() * backend.getSize(), "the input must hold a part for every rank");
    const std::vector<at::Tensor> own_parts = input.view({-1}).chunk(backend.getSize());
    for (int rank = 0; rank < backend.getSize(); ++rank) {
      const at::Tensor& own = own_parts[static_cast<size_t>(rank)];
      // The output is written before the last part is read.
      parts_.push_back(rank == rank_ ? (output_.is_alias_of(input) ? own.clone() : own) : at::empty_like(own));
    }
    for (int step = 1; step < backend.getSize(); ++step) {
      // All ranks start with another partner.
      const int to = (rank_ + step) % backend.getSize();
      const int from = (rank_ + backend.getSize() - step) % backend.getSize();
      std::vector<at::Tensor> arriving = {parts_[static_cast<size_t>(from)]};
      std::vector<at::Tensor> leaving = {own_parts[static_cast<size_t>(to)]};
      receives_.push_back(backend.recv(arriving, from, tag));
      sends_.push_back(backend.send(leaving, to, tag));
    }
  }

  bool isCompleted() override { return waited_; }

  bool wait(std::chrono::milliseconds timeout) override {
    if (waited_) return true;
    for (const auto& receive : receives_) receive->wait(timeout);
    at::Tensor result = output_.view({-1});
    result.copy_(parts_.front());
    for (size_t rank = 1; rank < parts_.size(); ++rank) combine(result, parts_[rank]);
    for (const auto& send : sends_) send->wait(timeout);
    waited_ = true;
    return true;
  }

 private:
  void combine(at::Tensor& result, const at::Tensor& part) const {
    if (op_.op_ == c10d::ReduceOp::SUM)
      result.add_(part);
    else if (op_.op_ == c10d::ReduceOp::MIN)
      at::minimum_out(result, result, part);
    else
      at::maximum_out(result, result, part);
  }

  at::Tensor output_;
  c10d::ReduceOp op_;
  std::vector<at::Tensor> parts_;  ///< of every rank, for this one
  std::vector<WorkPointer> receives_;
  std::vector<WorkPointer> sends_;
  std::atomic<bool> waited_{false};
};

}  // namespace

WorkPointer start_reduce_scatter(c10d::Backend& backend, at::Tensor output, const at::Tensor& input,
                                 const c10d::ReduceOp& op, int tag) {
  return c10::make_intrusive<ExchangeReduceScatter>(backend, std::move(output), input, op, tag);
}

}  // namespace levin
