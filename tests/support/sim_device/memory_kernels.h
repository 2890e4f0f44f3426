#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace torch {
class Library;
}

namespace levin::testing::sim {

/// Operators that make tensors and views, which run no kernel: empty, view, resize_, set_, record_stream.
void register_memory_kernels(torch::Library& operators);

/// A new tensor on a device, of memory of its current stream.
at::Tensor empty_on_device(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type,
                           c10::DeviceIndex device);

/// A view of a device tensor's memory.
at::Tensor view_of(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset,
                   caffe2::TypeMeta type);

/// Makes a storage larger, keeping what it holds.
void resize_storage(const c10::Storage& storage, size_t bytes);

}  // namespace levin::testing::sim
