#include "tests/support/sim_device/kernel_launch.h"

#include "tests/support/sim_device/hardware.h"
#include "tests/support/sim_device/ledger.h"
#include "tests/support/sim_device/memory_kernels.h"
#include "tests/support/sim_device/recording.h"
#include "tests/support/sim_device/streams.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <utility>

namespace levin::testing::sim {
namespace {

/// From the first to the last byte of a tensor; gaps between its elements count as touched.
ByteRange range_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto item = static_cast<int64_t>(tensor.element_size());
  return {static_cast<size_t>(tensor.storage_offset() * item),
          static_cast<size_t>((tensor.storage_offset() + last + 1) * item)};
}

}  // namespace

KernelLaunch::KernelLaunch(std::string name) : name_(std::move(name)), lock_(Hardware::instance().mutex()) {}

KernelLaunch::~KernelLaunch() {
  for (Block* block : opened_) block->close();
}

c10::DeviceIndex KernelLaunch::device() const { return device_.value_or(Streams::instance().current_device()); }

c10::Storage KernelLaunch::alias(const c10::Storage& storage) {
  const auto found = storages_.find(storage.unsafeGetStorageImpl());
  if (found != storages_.end()) return found->second;
  c10::Storage made(c10::Storage::use_byte_size_t(), storage.nbytes(),
                    c10::DataPtr(const_cast<void*>(storage.data()), c10::Device(c10::DeviceType::CPU)),
                    /*allocator=*/nullptr, /*resizable=*/false);
  storages_.emplace(storage.unsafeGetStorageImpl(), made);
  return made;
}

at::Tensor KernelLaunch::alias(const at::Tensor& tensor, bool write) {
  if (!tensor.defined()) return tensor;
  if (tensor.device().type() != kDeviceType) {
    if (tensor.dim() > 0) has_host_tensors_ = true;
    return tensor;
  }
  const c10::DeviceIndex device = tensor.device().index();
  TORCH_CHECK(!has_device_tensors_ || device == device_, "sim: ", name_,
              ": expected all tensors to be on the same device, but found sim:", int{*device_},
              " and sim:", int{device});
  device_ = device;
  has_device_tensors_ = true;
  if (const void* data = tensor.storage().data()) {
    Block* block = DeviceMemory::instance().find(data);
    TORCH_CHECK(block != nullptr, "sim: ", name_, ": illegal memory access: a tensor of memory that was freed");
    if (block->device() != device)
      Ledger::instance().add_fault(
          fmt::format("{}: memory of sim:{} in a tensor of sim:{}", name_, block->device(), device));
    if (!keeps_late_fills_) block->run_late_fills();
    block->open();
    opened_.push_back(block);
    uses_.push_back({block, range_of(tensor), write});
  }
  auto made = at::detail::make_tensor<c10::TensorImpl>(alias(tensor.storage()),
                                                       c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_storage_offset(tensor.storage_offset());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return made;
}

void KernelLaunch::start() {
  TORCH_CHECK(
      !has_host_tensors_ || !has_device_tensors_ || allows_host_tensors_, "sim: ", name_,
      ": expected all tensors to be on the same device, but found one of the host beside those of sim:", int{*device_});
  Hardware::instance().start(device());
  Streams& streams = Streams::instance();
  stream_ = index_of(streams.current(device()));
  work_ = streams.begin_work(stream_);
  Recording* recording = Recording::of_stream(stream_);
  for (const Use& use : uses_) {
    use.block->touch(use.range, stream_, work_, use.write, name_);
    if (recording != nullptr && use.write) recording->before_write(*use.block);
  }
  Ledger::instance().add_kernel(device() == streams.current_device());
}

at::Tensor KernelLaunch::result(const at::Tensor& cpu) {
  if (!cpu.defined()) return cpu;
  at::Tensor made = empty_on_device(cpu.sizes(), cpu.strides(), cpu.scalar_type(), device());
  if (cpu.numel() == 0) return made;
  Block* block = DeviceMemory::instance().find(made.storage().data());
  block->open();
  at::from_blob(block->base(), cpu.sizes(), cpu.strides(), cpu.options().requires_grad(false)).copy_(cpu);
  block->close();
  block->touch(range_of(made), stream_, work_, /*write=*/true, name_);
  if (cpu.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

}  // namespace levin::testing::sim
