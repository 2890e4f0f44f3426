#pragma once

#include <levin/core/base/error.h>
#include <levin/core/c/levin.h>
#include <levin/core/data/batch.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

namespace levin {

/// A wrong argument of a call from C, which has changed nothing.
class ArgumentError : public Error {
 public:
  explicit ArgumentError(const std::string& message) : Error("c", message) {}
};

/// Returns tensors over the memory of arrays. `name`: of the argument, for messages. Throws ArgumentError for a null
/// pointer, a wrong type, shape or stride.
std::vector<at::Tensor> view_arrays(const levin_array* arrays, size_t count, const char* name);

/// Copies tensors into arrays of their shapes. Throws ArgumentError, before anything is written, where a shape differs,
/// or an array would lose the fractions of its values or has elements that share memory.
void write_arrays(const std::vector<at::Tensor>& values, const levin_array* arrays, size_t count, const char* name);

/// "[32, 4]"
std::string describe_shape(at::IntArrayRef shape);

}  // namespace levin
