#include <levin/core/accelerators/copy_stream.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace levin {
namespace {

/// With the streams and events that every kind of accelerator has in LibTorch.
class DeviceSideStream final : public CopyStream {
 public:
  explicit DeviceSideStream(const at::Device& device)
      : device_(device),
        backend_(device.type()),
        side_(backend_.getStreamFromGlobalPool(device)),
        home_(side_),
        ready_(device.type()),
        copied_(device.type()) {}

  bool can_copy(const at::Tensor& host) const override {
    return host.is_non_overlapping_and_dense() && host.is_pinned();
  }

  std::vector<at::Tensor> copy(const std::vector<at::Tensor>& host) override {
    // The memory is the current stream's, which goes on using and reusing it as that of an ordinary copy: however far
    // the host is ahead of the device, no further block is needed. For this the side stream waits until the current
    // one has done with what was there.
    home_ = backend_.getStream(device_);
    std::vector<at::Tensor> copies;
    copies.reserve(host.size());
    for (const at::Tensor& tensor : host) copies.push_back(at::empty_like(tensor, at::TensorOptions().device(device_)));
    ready_.record(home_);
    ready_.block(side_);
    const c10::StreamGuard on_side(side_);
    for (size_t i = 0; i < host.size(); ++i) copies[i].copy_(host[i], /*non_blocking=*/true);
    copied_.record(side_);
    return copies;
  }

  void wait(const at::Tensor& copy) override {
    const c10::Stream current = backend_.getStream(device_);
    copied_.block(current);
    if (current != home_) copy.record_stream(current);
  }

 private:
  const at::Device device_;
  const c10::impl::VirtualGuardImpl backend_;
  const c10::Stream side_;
  c10::Stream home_;   ///< whose memory the copies are in
  c10::Event ready_;   ///< home_ has done with that memory
  c10::Event copied_;  ///< side_ has filled it
};

}  // namespace

std::unique_ptr<CopyStream> CopyStream::of(const at::Device& device) {
  // LibTorch has one stream on MPS.
  if (!at::accelerator::isAcceleratorExcluded(device.type(), at::kMPS)) return nullptr;
  return std::make_unique<DeviceSideStream>(device);
}

}  // namespace levin
