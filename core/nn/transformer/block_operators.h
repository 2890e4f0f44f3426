#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

/// Parts of a language model's block as operators of Levin's own (`levin::rms_norm` and so on), which recorders and
/// profilers see, with gradients: in one pass over memory what takes LibTorch's operators several. Float32 and bfloat16
/// on CPUs; sums are float32.
namespace levin::nn::detail {

/// Whether a tensor of values on the CPU is seen by no one who follows operators of LibTorch (a weight that is cut,
/// tracing), so that an operator of Levin's own may take it.
bool is_followed_by_no_one(const at::Tensor& tensor);

/// Whether tensors fit the operators below: of types that they know, and followed by no one. `other` may be undefined.
bool fits_block_operators(const at::Tensor& x, const at::Tensor& other);
/// The same of rms_norm and silu_multiply, which also take parts of sequences that ranks divide (see cut_context).
bool fits_block_operators_by_token(const at::Tensor& x, const at::Tensor& other);

/// As at::rms_norm over the last dimension with this weight, [size] or undefined, or with weight + 1.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, bool weight_is_offset);

/// silu(gate) · up, of one shape.
at::Tensor silu_multiply(const at::Tensor& gate, const at::Tensor& up);

/// Rotates the first 2 · half features of x [N, heads, T, head_dim], whose features are contiguous, by tables [T, half]
/// or [N, 1, T, half] of its type.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines);

}  // namespace levin::nn::detail
