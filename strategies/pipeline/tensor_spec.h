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
  bool shares_memory = false;  ///< with another one that passes, before they were sent; see find_shared_memory
};

/// Of logits that are cut over ranks, those of all classes count.
TensorSpec spec_of(const at::Tensor& tensor);
std::vector<TensorSpec> specs_of(const std::vector<at::Tensor>& tensors);
/// Marks in the specs of tensors which of them share memory with another one.
void find_shared_memory(const std::vector<at::Tensor>& tensors, std::vector<TensorSpec>& specs);
/// Whether tensors of these specs may pass where those of `expected` are awaited. One may do without the gradient that
/// it is expected to require, not the reverse.
bool may_pass_as(const std::vector<TensorSpec>& given, const std::vector<TensorSpec>& expected);
/// Describes a tensor for messages: "[8, 3, 32, 32] Float, channels last, that requires a gradient".
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
