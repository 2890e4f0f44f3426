#pragma once

#include <string>
#include <string_view>
#include <typeinfo>

namespace levin {

/// A demangled name without the namespaces and classes that it is in: "Block<a::B>" for "app::(anonymous
/// namespace)::Block<a::B>".
std::string_view without_scopes(std::string_view demangled);

/// A class as users call it: "Classifier".
std::string short_class_name(const std::type_info& type);

/// The text up to the first of `stops` that is outside of brackets.
std::string_view text_up_to(std::string_view text, std::string_view stops);

}  // namespace levin
