#include <levin/core/interfaces/load_weights.h>

#include <levin/core/interfaces/foreign_weights.h>
#include <levin/core/interfaces/module.h>

#include <torch/nn/module.h>

namespace levin {

std::map<std::string, std::string> tied_names(const torch::nn::Module& module) {
  std::map<const void*, std::string> first;
  for (const auto& [name, tensor] : saved_tensors(module)) first.emplace(tensor.unsafeGetTensorImpl(), name);
  std::map<std::string, std::string> tied;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    const auto found = first.find(tensor.unsafeGetTensorImpl());
    if (found != first.end() && found->second != name) tied.emplace(name, found->second);
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value());
  for (const auto& item : module.named_buffers()) add(item.key(), item.value());
  return tied;
}

void keep_first_names(State& model, const torch::nn::Module& module) {
  auto& tensors = model.as_map();
  for (const auto& [name, first] : tied_names(module)) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) continue;
    State tensor = std::move(found->second);
    tensors.erase(found);
    tensors.try_emplace(first, std::move(tensor));
  }
}

WeightPlan plan_weights(const torch::nn::Module& module, const LoadWeightsOptions& options) {
  return plan_weights(saved_tensors(module), tied_names(module), options);
}

WeightReport load_weights(torch::nn::Module& module, const LoadWeightsOptions& options) {
  WeightPlan plan = plan_weights(module, options);
  for (const auto& [name, tensor] : saved_tensors(module))
    if (const State* found = plan.tensors.find(name)) read_into(*found->as_leaf().saved, tensor.detach());
  return plan.report;
}

WeightReport load_weights(torch::nn::Module& module, const std::string& path, const WeightRules& rules) {
  return load_weights(module, {.path = path, .rules = rules});
}

LoadWeightsOptions checkpoint_weights(const torch::nn::Module& module, const std::string& path) {
  const auto* const foreign = dynamic_cast<const ForeignWeights*>(&module);
  return {.path = path, .rules = foreign != nullptr ? foreign->rules_of(path) : WeightRules()};
}

void save_weights(const torch::nn::Module& module, const std::string& path, const WriteWeightsOptions& options) {
  const WeightsFormat format = weights_format_of(path);
  std::vector<std::pair<std::string, TensorLeaf>> leaves;
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : saved_tensors(module))
    leaves.emplace_back(name, TensorLeaf{by_name[name] = tensor.detach()});
  if (keeps_tied_names(format))
    for (const auto& [name, first] : tied_names(module)) leaves.emplace_back(name, TensorLeaf{by_name.at(first)});
  write_weights(path, format, leaves, options);
}

}  // namespace levin
