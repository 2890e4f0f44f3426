#include <levin/core/connectors/batch_prefetch.h>

#include <levin/core/accelerators/accelerator_registry.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace levin {

std::unique_ptr<BatchPrefetch> BatchPrefetch::for_device(const at::Device& device) {
  auto stream = accelerator_of(device).make_copy_stream(device);
  return stream == nullptr ? nullptr : std::make_unique<BatchPrefetch>(std::move(stream));
}

BatchPrefetch::~BatchPrefetch() { drop_copies(); }

bool BatchPrefetch::can_copy(const Batch::Item& item) const {
  const auto& [name, tensor] = item;
  // Tensors made in inference mode have no version, and the copy of one that requires gradients is part of the graph.
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_inference() &&
         !tensor.requires_grad() && !not_taken_.contains(name) && stream_->can_copy(tensor);
}

void BatchPrefetch::start(const Batch& next) {
  for (const Copy& copy : copies_) not_taken_.insert(copy.name);
  drop_copies();
  if (out_of_memory_) return;
  std::vector<at::Tensor> hosts;
  for (const Batch::Item& item : next.items()) {
    if (!can_copy(item)) continue;
    const auto& [name, host] = item;
    copies_.push_back({.name = name, .host = host, .version = host._version(), .data = host.const_data_ptr()});
    hosts.push_back(host);
  }
  if (hosts.empty()) return;
  try {
    const std::vector<at::Tensor> on_device = stream_->copy(hosts);
    for (size_t i = 0; i < copies_.size(); ++i) copies_[i].on_device = on_device[i];
  } catch (const c10::OutOfMemoryError&) {
    // In its turn, when the present batch is gone, there may be room.
    out_of_memory_ = true;
    copies_.clear();
  } catch (...) {
    copies_.clear();
    throw;
  }
}

at::Tensor BatchPrefetch::take(const at::Tensor& host) {
  const auto found =
      std::find_if(copies_.begin(), copies_.end(), [&](const Copy& copy) { return copy.host.is_same(host); });
  // set_data() keeps the version.
  if (found == copies_.end() || host._version() != found->version || host.const_data_ptr() != found->data ||
      host.sizes() != found->on_device.sizes())
    return {};
  stream_->wait(found->on_device);
  at::Tensor taken = std::move(found->on_device);
  copies_.erase(found);
  return taken;
}

void BatchPrefetch::clear() noexcept {
  drop_copies();
  not_taken_.clear();
  out_of_memory_ = false;
}

void BatchPrefetch::drop_copies() noexcept {
  try {
    for (const Copy& copy : copies_) stream_->wait(copy.on_device);
  } catch (const c10::Error&) {
    // The device has failed: nothing will use that memory again, and the next call of it throws.
  }
  copies_.clear();
}

}  // namespace levin
