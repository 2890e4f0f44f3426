#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

namespace levin {

/// Whether few_class_cross_entropy takes these: rows of contiguous float32 logits of at most 16 classes and a class for
/// each, on the CPU.
bool fits_few_class_cross_entropy(const at::Tensor& input, const at::Tensor& target);

/// Returns the mean cross-entropy of the rows and its gradient, in one pass over them; without autograd. Rows of class
/// `ignore_index` do not count. It is the operator `levin::few_class_cross_entropy`, so that recorders and profilers
/// see it. Throws levin::Error for a class that is none of the columns.
std::tuple<at::Tensor, at::Tensor> few_class_cross_entropy(const at::Tensor& input, const at::Tensor& target,
                                                           int64_t ignore_index);

/// Throws levin::Error for a class that is none of the columns.
[[noreturn]] void throw_no_such_class(int64_t got, int64_t classes, int64_t ignore_index);

}  // namespace levin
