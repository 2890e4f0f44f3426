#pragma once

#include <string>
#include <string_view>
#include <typeinfo>

namespace levin {

/// Returns a demangled name without its enclosing namespaces and classes: "Block<a::B>" for "app::(anonymous
/// namespace)::Block<a::B>".
std::string_view without_scopes(std::string_view demangled);

/// Returns a class's name as users write it: "Classifier".
std::string short_class_name(const std::type_info& type);

/// Returns the text up to the first of `stops` outside of brackets.
std::string_view text_up_to(std::string_view text, std::string_view stops);

}  // namespace levin
