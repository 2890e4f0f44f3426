#pragma once

#include <unordered_set>

namespace c10 {
struct TensorImpl;
}
namespace torch::nn {
class Module;
}

namespace levin {

/// Returns the parameters of a module whose gradients are sparse unless something else uses them as well: weights of
/// Embedding and EmbeddingBag with `sparse`.
std::unordered_set<const c10::TensorImpl*> parameters_with_sparse_gradients(const torch::nn::Module& module);

}  // namespace levin
