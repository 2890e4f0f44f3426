#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace levin {

/// How gradients are clipped.
enum class ClipAlgorithm { kNorm, kValue };

namespace optim {

/// Scales all gradients so that their common 2-norm is at most `max_norm` (Pascanu, Mikolov and Bengio, 2013,
/// arXiv:1211.5063), without a host synchronisation. Parameters without a gradient are left out. `reduce_norm` combines
/// the norm over ranks that hold parts of the gradients. Returns the norm before clipping, undefined where there is no
/// gradient.
at::Tensor clip_by_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                        const std::function<at::Tensor(at::Tensor)>& reduce_norm = {});

/// Clamps every element of every gradient to [-limit, limit].
void clip_by_value(const std::vector<at::Tensor>& parameters, double limit);

}  // namespace optim
}  // namespace levin
