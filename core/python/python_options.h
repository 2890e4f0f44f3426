#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/base/schema.h>

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

namespace levin::python {

/// Returns options as they are given in Python, a mapping of None, bool, int, float, str, paths, lists and mappings, as
/// the tree that YAML would give. `path` is their place, for messages. Throws ConfigError for anything else.
Config config_of(const pybind11::handle& options, const std::string& path);

/// Returns the trainer's options: `given` over what `source` has, a mapping, the path of a program's YAML file (str or
/// os.PathLike), of which the section `trainer` counts, or None. Throws ConfigError.
Config trainer_config(const pybind11::object& source, const pybind11::kwargs& given);

/// Returns a class's documentation: its own, and what its options are.
std::string documentation(const std::string& text, const std::vector<FieldDoc>& options);

/// Makes a Configurable from the options that Python gives by name, as levin::make does. `name` is the class's, for
/// messages. Throws ConfigError.
template <class T>
std::shared_ptr<T> make_from(const Config& options, const std::string& name) {
  constexpr bool is_described = Described<OptionsOf<T>>;
  static_assert(is_described,
                "levin: the class's Options need a public `static void describe(levin::Schema<Options>&)`");
  if constexpr (is_described && levin::detail::check_constructor<T>())
    return levin::detail::make_named<T>(levin::detail::demangled(typeid(T).name()),
                                        parse_options<OptionsOf<T>>(options, name));
  else
    return nullptr;
}

}  // namespace levin::python
