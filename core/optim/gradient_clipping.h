#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace levin {

/// Algorithms of gradient clipping.
enum class ClipAlgorithm {
  kNorm,      ///< by the norm of all of them together
  kValue,     ///< element by element
  kAdaptive,  ///< row by row, by the norm of the row's weights
};

namespace optim {

/// The 2-norm of all gradients together, a float32 (float64 for gradients of that type) tensor of no dimension on their
/// device; undefined where there is no gradient. `reduce_norm` combines it over ranks that hold parts of the gradients.
at::Tensor gradient_norm(const std::vector<at::Tensor>& parameters,
                         const std::function<at::Tensor(at::Tensor)>& reduce_norm = {});

/// Divisor that brings gradients of this norm to at most `max_norm`: 1 where they are there already.
at::Tensor clip_divisor(const at::Tensor& norm, double max_norm);

/// Scales all gradients so that their common 2-norm is at most `max_norm` (Pascanu, Mikolov and Bengio, 2013,
/// arXiv:1211.5063), without a host synchronisation. Parameters without a gradient are left out. Returns the norm
/// before clipping, as gradient_norm.
at::Tensor clip_by_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                        const std::function<at::Tensor(at::Tensor)>& reduce_norm = {});

/// Divides all gradients by a number, a tensor of no dimension.
void divide_gradients(const std::vector<at::Tensor>& parameters, const at::Tensor& divisor);

/// Clamps every element of every gradient to [-limit, limit].
void clip_by_value(const std::vector<at::Tensor>& parameters, double limit);

/// Divisors of the rows of a gradient, from the norms of rows of weights and of gradients; see clip_adaptively.
at::Tensor adaptive_divisor(const at::Tensor& weight_norms, const at::Tensor& gradient_norms, double ratio);

/// Adaptive gradient clipping (Brock et al., 2021, arXiv:2102.06171): the gradient of each output (a row of a matrix, a
/// filter of a convolution, a whole vector) gets a norm of at most `ratio` times that of its weights, which count as at
/// least 0.001. The paper takes 0.01, and leaves out a classifier's last layer.
void clip_adaptively(const std::vector<at::Tensor>& parameters, double ratio);

}  // namespace optim
}  // namespace levin
