#include <levin/core/nn/module_type_name.h>

#include <levin/core/base/type_name.h>

#include <string_view>

namespace levin {

std::string short_type_name(const std::string& demangled) {
  constexpr std::string_view kUnit = "levin::detail::UnitOfSignature<";
  std::string_view name = demangled;
  if (name.starts_with(kUnit)) name = text_up_to(name.substr(kUnit.size()), ",");
  name = without_scopes(name);
  if (name.size() > 4 && name.ends_with("Impl")) name.remove_suffix(4);
  return std::string(name);
}

}  // namespace levin
