#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin {

/// Type and shape of a tensor, which a stage must know before it comes.
struct TensorSpec {
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> sizes;
  bool requires_grad = false;
  bool channels_last = false;

  bool operator==(const TensorSpec&) const = default;
};

TensorSpec spec_of(const at::Tensor& tensor);
std::vector<TensorSpec> specs_of(const std::vector<at::Tensor>& tensors);
/// Describes a tensor for messages: "[8, 3, 32, 32] Float".
std::string to_string(const TensorSpec& spec);
std::string to_string(const std::vector<TensorSpec>& specs);

std::string specs_to_bytes(const std::vector<TensorSpec>& specs);
std::vector<TensorSpec> specs_from_bytes(const std::string& bytes);

/// Returns the values in the order in which they travel: densely, in the memory format that the receiver expects.
at::Tensor to_wire(const at::Tensor& tensor, bool channels_last);
/// A tensor that such values can be received into, and what they are then.
struct Arrival {
  at::Tensor wire;
  at::Tensor tensor;  ///< a view of `wire`
};
Arrival make_arrival(const TensorSpec& spec, const at::Device& device);

}  // namespace levin
