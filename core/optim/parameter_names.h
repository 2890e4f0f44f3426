#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace levin::optim {

/// Parameters by name and names by parameter. A parameter registered twice keeps its first name.
class ParameterNames {
 public:
  using Item = std::pair<std::string, at::Tensor>;

  ParameterNames() = default;
  /// All parameters of a module, in its order.
  explicit ParameterNames(const torch::nn::Module& module);

  /// Adds a parameter unless it already has a name. Throws levin::Error when the name belongs to another parameter.
  void add(const std::string& name, const at::Tensor& parameter);

  const std::vector<Item>& items() const { return items_; }
  /// The name of the parameter that this TensorImpl is, or nullptr.
  const std::string* find(const void* tensor_impl) const;
  /// The parameter of a name, or nullptr.
  const at::Tensor* find_parameter(std::string_view name) const;
  /// The name of a parameter; throws levin::Error when it has none.
  const std::string& require(const at::Tensor& parameter) const;

 private:
  std::vector<Item> items_;
  std::unordered_map<const void*, size_t> by_tensor_;
  std::unordered_map<std::string, size_t> by_name_;
};

}  // namespace levin::optim
