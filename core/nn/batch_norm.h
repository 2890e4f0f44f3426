#pragma once

#include <torch/nn/modules/batchnorm.h>

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

}  // namespace levin
