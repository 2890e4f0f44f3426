#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace levin {

/// Makes a tensor of the shape and type of `like` whose storage is released: reading its values, or those of a view of
/// it, throws an error with `message`.
at::Tensor released_tensor(const at::Tensor& like, const at::Device& device, const std::string& message);
/// Whether a tensor's storage is released, as strategies that divide a model leave parameters and buffers that this
/// rank does not hold.
bool is_released(const at::Tensor& tensor);
/// Gives a released tensor another message.
void set_released_message(const at::Tensor& tensor, const std::string& message);
/// Returns the message of a released tensor; empty where it has none.
std::string released_message(const at::Tensor& tensor);

/// Frees a tensor's memory; it keeps its identity, and so do its views.
void release_storage(const at::Tensor& tensor);

}  // namespace levin
