#include <levin/core/nn/module_type_name.h>

#include <cstdint>
#include <string_view>

namespace levin {
namespace {

/// The text up to the first of `stops` that is outside of brackets.
std::string_view up_to(std::string_view text, std::string_view stops) {
  int64_t open = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (open == 0 && stops.find(text[i]) != std::string_view::npos) return text.substr(0, i);
    if (text[i] == '<' || text[i] == '(') ++open;
    if (text[i] == '>' || text[i] == ')') --open;
  }
  return text;
}

}  // namespace

std::string short_type_name(const std::string& demangled) {
  constexpr std::string_view kUnit = "levin::detail::UnitOfSignature<";
  std::string_view name = demangled;
  if (name.starts_with(kUnit)) name = up_to(name.substr(kUnit.size()), ",");
  for (std::string_view scope = up_to(name, ":"); scope.size() < name.size(); scope = up_to(name, ":"))
    name.remove_prefix(scope.size() + 2);
  if (name.size() > 4 && name.ends_with("Impl")) name.remove_suffix(4);
  return std::string(name);
}

}  // namespace levin
