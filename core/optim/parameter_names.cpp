#include <levin/core/optim/parameter_names.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

namespace levin::optim {

ParameterNames::ParameterNames(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) add(item.key(), item.value());
}

void ParameterNames::add(const std::string& name, const at::Tensor& parameter) {
  const void* impl = parameter.unsafeGetTensorImpl();
  if (by_tensor_.contains(impl)) return;
  if (!by_name_.emplace(name, items_.size()).second)
    throw Error("optim", fmt::format("two parameters have the name '{}'; valid: names that are unique", name));
  by_tensor_.emplace(impl, items_.size());
  items_.emplace_back(name, parameter);
}

const std::string* ParameterNames::find(const void* tensor_impl) const {
  const auto found = by_tensor_.find(tensor_impl);
  return found == by_tensor_.end() ? nullptr : &items_[found->second].first;
}

const at::Tensor* ParameterNames::find_parameter(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &items_[found->second].second;
}

const std::string& ParameterNames::require(const at::Tensor& parameter) const {
  const std::string* name = find(parameter.unsafeGetTensorImpl());
  if (name == nullptr)
    throw Error(
        "optim",
        fmt::format("an optimizer holds a parameter of shape [{}] that the module does not have; hint: register "
                    "it with the module (register_parameter, register_module)",
                    fmt::join(parameter.sizes().begin(), parameter.sizes().end(), ", ")));
  return *name;
}

}  // namespace levin::optim
