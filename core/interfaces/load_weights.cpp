#include <levin/core/interfaces/load_weights.h>

#include <levin/core/interfaces/module.h>

#include <torch/nn/module.h>

namespace levin {
namespace {

/// The further names of tensors that a module has under several.
std::map<std::string, std::string> aliases_of(const torch::nn::Module& module, const NamedTensors& tensors) {
  std::map<const void*, std::string> first;
  for (const auto& [name, tensor] : tensors) first.emplace(tensor.unsafeGetTensorImpl(), name);
  std::map<std::string, std::string> aliases;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    const auto found = first.find(tensor.unsafeGetTensorImpl());
    if (found != first.end() && found->second != name) aliases.emplace(name, found->second);
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value());
  for (const auto& item : module.named_buffers()) add(item.key(), item.value());
  return aliases;
}

}  // namespace

WeightPlan plan_weights(const torch::nn::Module& module, const LoadWeightsOptions& options) {
  const NamedTensors tensors = named_tensors(module);
  return plan_weights(tensors, aliases_of(module, tensors), options);
}

WeightReport load_weights(torch::nn::Module& module, const LoadWeightsOptions& options) {
  WeightPlan plan = plan_weights(module, options);
  for (const auto& [name, tensor] : named_tensors(module))
    if (const State* found = plan.tensors.find(name)) read_into(*found->as_leaf().saved, tensor.detach());
  return plan.report;
}

WeightReport load_weights(torch::nn::Module& module, const std::string& path, const WeightRules& rules) {
  return load_weights(module, {.path = path, .rules = rules});
}

void save_weights(const torch::nn::Module& module, const std::string& path, const WriteWeightsOptions& options) {
  std::vector<std::pair<std::string, TensorLeaf>> leaves;
  for (const auto& [name, tensor] : named_tensors(module)) leaves.emplace_back(name, TensorLeaf{tensor.detach()});
  write_weights(path, weights_format_of(path), leaves, options);
}

}  // namespace levin
