#pragma once

#include <memory>

namespace torch::autograd {
struct AutogradContext;
}

namespace levin {

class Collective;

namespace detail {

/// Keeps the ranks that a function of autograd asks, for its backward.
void keep_group(torch::autograd::AutogradContext& context, const std::shared_ptr<Collective>& group);
std::shared_ptr<Collective> kept_group(torch::autograd::AutogradContext& context);

}  // namespace detail
}  // namespace levin
