#pragma once

#include <levin/core/comm/collective.h>
#include <levin/strategies/comm/c10d_collective.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <string>
#include <utility>
#include <vector>

namespace levin::testing {

/// Passes on what a group does on the CPU, and counts the bytes that one of its ranks would send for it in a ring.
class CountingBackend final : public c10d::Backend {
 public:
  /// Takes the place of a group's backend. nullptr: the group has one rank.
  static c10::intrusive_ptr<CountingBackend> put_before(Collective& group) {
    auto* const collective = dynamic_cast<C10dCollective*>(&group);
    if (collective == nullptr || collective->world_size() == 1) return nullptr;
    const auto& process_group = collective->process_group();
    auto counting = c10::make_intrusive<CountingBackend>(process_group->getBackend(c10::DeviceType::CPU));
    // Under a type that no backend has yet: the group keeps the first one of each type.
    process_group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::UCC, counting);
    return counting;
  }

  explicit CountingBackend(c10::intrusive_ptr<c10d::Backend> backend)
      : Backend(backend->getRank(), backend->getSize()), backend_(std::move(backend)) {}

  double sent() const { return sent_; }

  const std::string getBackendName() const override { return backend_->getBackendName(); }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    for (const at::Tensor& tensor : tensors) sent_ += 2 * ring_bytes(tensor);
    return backend_->allreduce(tensors, options);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    for (const at::Tensor& tensor : tensors) sent_ += ring_bytes(tensor);
    return backend_->broadcast(tensors, options);
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    sent_ += ring_bytes(output);
    return backend_->_allgather_base(output, input, options);
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override {
    sent_ += ring_bytes(input);
    return backend_->_reduce_scatter_base(output, input, options);
  }
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override {
    return backend_->allgather(outputs, inputs, options);
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    return backend_->barrier(options);
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return backend_->send(tensors, to, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    return backend_->recv(tensors, from, tag);
  }
  void abort() override { backend_->abort(); }
  void shutdown() override { backend_->shutdown(); }

 private:
  double ring_bytes(const at::Tensor& tensor) const {
    return static_cast<double>(tensor.nbytes()) * (getSize() - 1) / getSize();
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  double sent_ = 0;
};

}  // namespace levin::testing
