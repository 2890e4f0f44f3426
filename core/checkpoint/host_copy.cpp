#include <levin/core/checkpoint/host_copy.h>

#include <levin/core/accelerators/accelerator_registry.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

namespace levin {
namespace {

/// The memory of a tensor without gaps.
at::Tensor as_bytes(const at::Tensor& dense) { return dense.as_strided({dense.numel()}, {1}).view(at::kByte); }

/// Brings tensors of one device to the host by way of two page-locked buffers.
class Staging {
 public:
  Staging(const at::Device& device, int64_t bytes) : device_(device), bytes_(bytes) {}

  void copy(const at::Tensor& source, const at::Tensor& target) {
    const at::Tensor from = as_bytes(source);
    auto* to = static_cast<char*>(target.data_ptr());
    for (int64_t start = 0; start < from.numel();) {
      if (buffer().used == bytes_) next();
      const int64_t size = std::min(from.numel() - start, bytes_ - buffer().used);
      buffer().memory.narrow(0, buffer().used, size).copy_(from.narrow(0, start, size), /*non_blocking=*/true);
      buffer().parts.push_back({.to = to + start, .start = buffer().used, .size = size});
      buffer().used += size;
      start += size;
    }
  }
  void finish() {
    next();
    empty(1 - newest_);
  }

 private:
  struct Part {
    char* to;
    int64_t start;
    int64_t size;
  };
  struct Buffer {
    at::Tensor memory;
    int64_t used = 0;
    std::vector<Part> parts;
    c10::Event filled;
  };

  Buffer make() const {
    return {.memory = at::empty({bytes_}, at::TensorOptions(at::kByte).pinned_memory(true)),
            .filled = c10::Event(device_.type())};
  }
  Buffer& buffer() {
    while (buffers_.size() <= newest_) buffers_.push_back(make());
    return buffers_[newest_];
  }
  /// Goes on with the other buffer, once what that one holds is where it belongs.
  void next() {
    buffer().filled.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    newest_ = 1 - newest_;
    empty(newest_);
  }
  void empty(size_t index) {
    if (index >= buffers_.size() || buffers_[index].used == 0) return;
    Buffer& full = buffers_[index];
    full.filled.synchronize();
    const auto* memory = static_cast<const char*>(full.memory.const_data_ptr());
    for (const Part& part : full.parts) std::memcpy(part.to, memory + part.start, static_cast<size_t>(part.size));
    full.parts.clear();
    full.used = 0;
  }

  const at::Device device_;
  const int64_t bytes_;
  std::vector<Buffer> buffers_;  ///< two at most
  size_t newest_ = 0;
};

class HostCopy {
 public:
  explicit HostCopy(int64_t staging_bytes) : staging_bytes_(staging_bytes) {}

  State of(const State& node) {
    if (node.is_tensor()) return leaf(node.as_leaf());
    if (node.is_list()) {
      State copy = State::list();
      for (const State& item : node.as_list()) copy.push_back(of(item));
      return copy;
    }
    if (!node.is_map()) return node;
    State copy = State::map();
    for (const auto& [key, value] : node.as_map()) copy[key] = of(value);
    return copy;
  }

  void finish() {
    for (auto& [device, staging] : staging_) staging.finish();
  }

 private:
  State leaf(const TensorLeaf& leaf) {
    if (!leaf.value.defined()) return leaf;
    const at::Tensor source = leaf.value.detach();
    const at::Tensor copy = at::empty_like(source, source.options().device(at::kCPU));
    if (accelerator_of(source.device()).uses_pinned_memory() && source.is_non_overlapping_and_dense() &&
        copy.strides() == source.strides())
      staging_.try_emplace({source.device().type(), source.device().index()}, source.device(), staging_bytes_)
          .first->second.copy(source, copy);
    else
      copy.copy_(source);
    return TensorLeaf{copy, leaf.placement, leaf.saved};
  }

  const int64_t staging_bytes_;
  std::map<std::pair<at::DeviceType, at::DeviceIndex>, Staging> staging_;
};

}  // namespace

State host_copy(const State& tree, int64_t staging_bytes) {
  const c10::InferenceMode guard(false);
  const at::NoGradGuard no_grad;
  HostCopy copying(staging_bytes);
  State copy = copying.of(tree);
  copying.finish();
  return copy;
}

}  // namespace levin
