#include <levin/core/nn/unit_notes.h>

#include <levin/core/base/error_notes.h>
#include <levin/core/nn/module_type_name.h>
#include <levin/core/nn/named_units.h>
#include <levin/core/nn/unit.h>

#include <fmt/format.h>
#include <torch/nn/modules/linear.h>

#include <sstream>
#include <string>
#include <string_view>

namespace levin {
namespace {

/// "Linear 784→128", other layers of LibTorch as they print themselves, other classes by name.
std::string type_and_sizes(const torch::nn::Module& module) {
  if (const auto* linear = module.as<torch::nn::Linear>())
    return fmt::format("Linear {}→{}", linear->options.in_features(), linear->options.out_features());
  constexpr std::string_view kLibTorch = "torch::nn::";
  if (!module.name().starts_with(kLibTorch) || !module.children().empty()) return short_type_name(module.name());
  std::ostringstream stream;
  module.pretty_print(stream);
  const std::string text = stream.str();
  return text.starts_with(kLibTorch) ? text.substr(kLibTorch.size()) : text;
}

}  // namespace

void note_unit(ErrorNotes& notes, const Unit& unit, const torch::nn::Module* module) {
  if (notes.unit != nullptr) return;
  notes.unit = &unit;
  notes.unit_type = module == nullptr ? "Function" : type_and_sizes(*module);
}

void note_unit_path(ErrorNotes& notes, torch::nn::Module& root) {
  if (notes.unit == nullptr || !notes.unit_path.empty()) return;
  for (const NamedUnit& named : named_units(root))
    if (named.unit == notes.unit) notes.unit_path = named.path;
}

}  // namespace levin
