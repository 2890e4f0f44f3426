#include <levin/core/export/traced_unit.h>

#include <fmt/format.h>

namespace levin {

std::string unit_of(const torch::jit::Node& node) {
  const torch::jit::ScopePtr scope = const_cast<torch::jit::Node&>(node).scope();
  if (scope == nullptr || scope->isRoot()) return "the model";
  return fmt::format("the unit '{}'", scope->name().toUnqualString());
}

}  // namespace levin
