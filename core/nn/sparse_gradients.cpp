#include <levin/core/nn/sparse_gradients.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

namespace levin {

std::unordered_set<const c10::TensorImpl*> parameters_with_sparse_gradients(const torch::nn::Module& module) {
  std::unordered_set<const c10::TensorImpl*> found;
  for (const auto& part : module.modules(/*include_self=*/false)) {
    if (const auto* embedding = part->as<torch::nn::EmbeddingImpl>();
        embedding != nullptr && embedding->options.sparse())
      found.insert(embedding->weight.unsafeGetTensorImpl());
    if (const auto* bag = part->as<torch::nn::EmbeddingBagImpl>(); bag != nullptr && bag->options.sparse())
      found.insert(bag->weight.unsafeGetTensorImpl());
  }
  return found;
}

}  // namespace levin
