#include <levin/core/nn/outermost_sequentials.h>

#include <levin/core/nn/sequential.h>

#include <torch/nn/module.h>

#include <algorithm>

namespace levin {

std::map<std::string, SequentialImpl*> outermost_sequentials(torch::nn::Module& module) {
  std::map<std::string, SequentialImpl*> found;
  for (const auto& part : module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    auto* sequential = dynamic_cast<SequentialImpl*>(part.value().get());
    if (sequential == nullptr) continue;
    const bool is_inside = std::any_of(found.begin(), found.end(),
                                       [&](const auto& other) { return part.key().starts_with(other.first + "."); });
    if (!is_inside) found.emplace(part.key(), sequential);
  }
  return found;
}

}  // namespace levin
