#include <levin/core/connectors/span_names.h>

#include <levin/core/interfaces/callback.h>
#include <levin/core/interfaces/module.h>

#include <fmt/format.h>

#include <typeinfo>

namespace levin {
namespace {

std::string span_name(const char* kind, const std::type_info& type, const char* hook) {
  std::string class_name = detail::demangled(type.name());
  // What a reader knows the class by.
  for (const std::string_view scope : {"levin::", "(anonymous namespace)::"})
    if (class_name.starts_with(scope)) class_name.erase(0, scope.size());
  return fmt::format("[{}]{}.{}", kind, class_name, hook);
}

}  // namespace

const std::string* SpanNames::of_callbacks(const char* hook, const std::vector<std::shared_ptr<Callback>>& callbacks) {
  const auto [entry, is_new] = of_callbacks_.try_emplace(hook);
  if (is_new) {
    for (const auto& callback : callbacks) {
      const Callback& object = *callback;
      entry->second.push_back(span_name("Callback", typeid(object), hook));
    }
  }
  return entry->second.data();
}

const char* SpanNames::of_module(const char* hook, const Module& module) {
  const auto [entry, is_new] = of_module_.try_emplace(hook);
  if (is_new) entry->second = span_name("Module", typeid(module), hook);
  return entry->second.c_str();
}

void SpanNames::clear() {
  of_callbacks_.clear();
  of_module_.clear();
}

}  // namespace levin
