#pragma once

#include <torch/nn/modules/batchnorm.h>

#include <unordered_set>

namespace levin {

/// Calls `use` with the module as BatchNorm1d, 2d or 3d; false when it is none of them.
template <class Use>
bool visit_batch_norm(torch::nn::Module& module, Use&& use) {
  const auto visit = [&](auto* batch_norm) {
    if (batch_norm != nullptr) use(*batch_norm);
    return batch_norm != nullptr;
  };
  return visit(dynamic_cast<torch::nn::BatchNorm1dImpl*>(&module)) ||
         visit(dynamic_cast<torch::nn::BatchNorm2dImpl*>(&module)) ||
         visit(dynamic_cast<torch::nn::BatchNorm3dImpl*>(&module));
}

inline bool is_batch_norm(torch::nn::Module& module) {
  return visit_batch_norm(module, [](auto&) {});
}

/// Collects the TensorImpls of the parameters that belong to such layers of a module.
inline std::unordered_set<const void*> batch_norm_parameters(torch::nn::Module& module) {
  std::unordered_set<const void*> found;
  const auto add = [&](torch::nn::Module& part) {
    if (!is_batch_norm(part)) return;
    for (const auto& parameter : part.parameters(/*recurse=*/false)) found.insert(parameter.unsafeGetTensorImpl());
  };
  add(module);
  for (const auto& part : module.modules(/*include_self=*/false)) add(*part);
  return found;
}

}  // namespace levin
