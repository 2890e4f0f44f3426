#include <levin/core/base/type_name.h>

#include <levin/core/base/registry.h>

#include <cstddef>
#include <cstdint>

namespace levin {

std::string_view text_up_to(std::string_view text, std::string_view stops) {
  int64_t open = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (open == 0 && stops.find(text[i]) != std::string_view::npos) return text.substr(0, i);
    if (text[i] == '<' || text[i] == '(') ++open;
    if (text[i] == '>' || text[i] == ')') --open;
  }
  return text;
}

std::string_view without_scopes(std::string_view demangled) {
  std::string_view name = demangled;
  for (std::string_view scope = text_up_to(name, ":"); scope.size() < name.size(); scope = text_up_to(name, ":"))
    name.remove_prefix(scope.size() + 2);
  return name;
}

std::string short_class_name(const std::type_info& type) {
  return std::string(without_scopes(detail::demangled(type.name())));
}

}  // namespace levin
