#pragma once

#include <levin/core/nn/tensor_plan.h>

#include <optional>

namespace torch::nn {
class Module;
}

namespace levin {

/// Says how a module is cut where its type does not say it (see HasTensorPlan), such as one of a library; instead of
/// what its type says where it does. An empty plan: not at all. On every rank, before the call that divides the module:
/// where it is built. Throws levin::Error in the module's own constructor, where nothing owns it yet. Thread-safe.
void parallelize(torch::nn::Module& module, TensorPlan plan);

/// Returns the plan of a module: the one that it was given, else its type's; nothing where there is none.
std::optional<TensorPlan> tensor_plan_of(const torch::nn::Module& module);

}  // namespace levin
