#include "tests/support/sim_device/memory_kernels.h"

#include "tests/support/sim_device/device_memory.h"
#include "tests/support/sim_device/hardware.h"
#include "tests/support/sim_device/streams.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>

namespace levin::testing::sim {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Device device_or_current(const std::optional<c10::Device>& device) {
  return device && device->has_index() ? *device : c10::Device(kDeviceType, Streams::instance().current_device());
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<c10::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(sizes, &DeviceMemory::instance(), kKeys, c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  return empty_on_device(sizes, strides, c10::dtype_or_default(type), device_or_current(device).index());
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                      std::optional<int64_t> offset) {
  return view_of(self, sizes, strides, offset.value_or(self.storage_offset()), self.dtype());
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef sizes) {
  const at::DimVector wanted = at::infer_size_dv(sizes, self.numel());
  const auto strides = at::detail::computeStride(self.sizes(), self.strides(), wanted);
  TORCH_CHECK(strides.has_value(), "view: the sizes do not fit the tensor's strides; use reshape");
  return view_of(self, wanted, *strides, self.storage_offset(), self.dtype());
}

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return view_of(self, sizes, strides, self.storage_offset(), self.dtype());
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  const auto bytes = static_cast<size_t>((c10::multiply_integers(sizes) + self.storage_offset()) *
                                         static_cast<int64_t>(self.element_size()));
  if (bytes > self.storage().nbytes()) {
    const c10::DeviceGuard guard(self.device());
    resize_storage(self.storage(), bytes);
  }
  impl->set_sizes_contiguous(sizes);
  if (format) impl->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_to_storage(at::Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef sizes,
                           at::IntArrayRef strides) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  if (strides.data() == nullptr)
    impl->set_sizes_contiguous(sizes);
  else
    impl->set_sizes_and_strides(sizes, strides);
  return self;
}

at::Tensor& set_to_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_to_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  DeviceMemory::instance().recordStream(self.storage().data_ptr(), stream);
}

}  // namespace

at::Tensor empty_on_device(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type,
                           c10::DeviceIndex device) {
  const c10::DeviceGuard guard(c10::Device(kDeviceType, device));
  return at::detail::empty_strided_generic(sizes, strides, &DeviceMemory::instance(), kKeys, type);
}

at::Tensor view_of(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset,
                   caffe2::TypeMeta type) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(tensor.storage()),
                                                       tensor.key_set(), type);
  made.unsafeGetTensorImpl()->set_storage_offset(offset);
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return made;
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  DeviceMemory& memory = DeviceMemory::instance();
  auto fresh = memory.allocate(bytes);
  if (storage.nbytes() > 0) memory.copy_data(fresh.get(), storage.data(), std::min(bytes, storage.nbytes()));
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

void register_memory_kernels(torch::Library& operators) {
  operators.impl("empty.memory_format", empty);
  operators.impl("empty_strided", empty_strided);
  operators.impl("as_strided", as_strided);
  operators.impl("view", view);
  operators.impl("_reshape_alias", reshape_alias);
  operators.impl("resize_", resize);
  operators.impl("set_.source_Storage_storage_offset", set_to_storage);
  operators.impl("set_.source_Tensor", set_to_tensor);
  operators.impl("record_stream", record_stream);
}

}  // namespace levin::testing::sim
