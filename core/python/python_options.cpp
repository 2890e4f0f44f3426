#include <levin/core/python/python_options.h>

#include <levin/core/base/error.h>
#include <levin/core/cli/trainer_config.h>

#include <cstddef>
#include <string>

namespace py = pybind11;

namespace levin::python {
namespace {

bool is_mapping(const py::handle& value) { return PyDict_Check(value.ptr()) != 0; }
bool is_list(const py::handle& value) { return py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value); }
bool is_path(const py::handle& value) { return py::hasattr(value, "__fspath__"); }
/// A number of NumPy's, or a tensor without dimensions.
bool is_boxed_number(const py::handle& value) {
  return py::hasattr(value, "item") && py::hasattr(value, "shape") && py::len(value.attr("shape")) == 0;
}

std::string type_of(const py::handle& value) { return py::str(py::type::of(value).attr("__name__")); }

Config list_of(const py::handle& values, const std::string& path, size_t depth);
Config mapping_of(const py::handle& values, const std::string& path, size_t depth);

/// `depth`: of the lists and mappings around it. One that holds itself has no end.
Config value_of(const py::handle& value, const std::string& path, size_t depth) {
  const Origin origin = {.source = "Python"};
  if (depth > Config::kMaxDepth)
    throw ConfigError("options hold lists or mappings in more than " + std::to_string(Config::kMaxDepth) + " others");
  const auto scalar = [&](const Config& dumped) { return Config::scalar(dumped.text(), dumped.quoted(), origin); };
  if (value.is_none()) return Config::null(origin);
  if (py::isinstance<py::bool_>(value)) return scalar(ConfigCodec<bool>::dump(value.cast<bool>()));
  if (py::isinstance<py::str>(value)) return Config::scalar(value.cast<std::string>(), /*quoted=*/true, origin);
  if (is_path(value)) return Config::scalar(value.attr("__fspath__")().cast<std::string>(), /*quoted=*/true, origin);
  if (PyFloat_Check(value.ptr()) != 0) return scalar(ConfigCodec<double>::dump(value.cast<double>()));
  if (py::isinstance<py::int_>(value)) return Config::scalar(py::str(value), /*quoted=*/false, origin);
  if (is_boxed_number(value)) return value_of(value.attr("item")(), path, depth + 1);
  if (is_mapping(value)) return mapping_of(value, path, depth + 1);
  if (is_list(value)) return list_of(value, path, depth + 1);
  throw ConfigError(path + ": a value of type " + type_of(value) +
                    " is no option; valid: None, bool, int, float, str, a path, and lists and dicts of these");
}

Config list_of(const py::handle& values, const std::string& path, size_t depth) {
  Config list = Config::sequence({}, {.source = "Python"});
  for (const auto& value : values)
    list.push_back(value_of(value, path + "[" + std::to_string(list.items().size()) + "]", depth));
  return list;
}

Config mapping_of(const py::handle& values, const std::string& path, size_t depth) {
  const Origin origin = {.source = "Python"};
  Config mapping = Config::mapping(origin);
  for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(values)) {
    if (!py::isinstance<py::str>(key) && !py::isinstance<py::int_>(key))
      throw ConfigError(path + ": a key of type " + type_of(key) + " is no option's name; valid: str");
    const std::string name = py::str(key);
    mapping.set(name, value_of(value, path.empty() ? name : path + "." + name, depth), origin);
  }
  return mapping;
}

}  // namespace

Config config_of(const py::handle& options, const std::string& path) { return value_of(options, path, 0); }

Config trainer_config(const py::object& source, const py::kwargs& given) {
  Config config = Config::mapping();
  if (py::isinstance<py::str>(source) || is_path(source))
    config = load_trainer_config(py::module_::import("os").attr("fspath")(source).cast<std::string>());
  else if (is_mapping(source))
    config = config_of(source, "trainer");
  else if (!source.is_none())
    throw ConfigError("Trainer takes a dict of options, the path of a YAML file, or options by name; got " +
                      py::str(py::repr(source)).cast<std::string>());
  config.merge(config_of(given, "trainer"));
  return config;
}

std::string documentation(const std::string& text, const std::vector<FieldDoc>& options) {
  std::string page = text;
  if (!options.empty()) page += page.empty() ? "Options:\n" : "\n\nOptions:\n";
  for (const auto& option : options)
    page += "\n    " + option.name + " (" + option.type + (option.constraint.empty() ? "" : ", " + option.constraint) +
            "; default " + option.default_value + "): " + option.doc;
  return page;
}

}  // namespace levin::python
