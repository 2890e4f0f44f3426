#include <levin/core/base/schema.h>

#include <levin/core/base/log.h>
#include <levin/core/base/yaml_reader.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

namespace levin {
namespace {

std::string out_of_range_message(const Origin& origin, std::string_view path, std::string_view constraint,
                                 std::string_view got) {
  return fmt::format("{}{} must be {}; got {}", origin.prefix(), path, constraint, got);
}

/// Whether the text of a list or mapping is known: it comes from a command line or a variable.
bool has_text(const Config& node) { return node.is_scalar() || (!node.is_null() && !node.text().empty()); }

thread_local bool takes_typed_form = false;

/// Whole-text conversion; a leading '+' is allowed. std::errc() when it is a number of that type.
template <class T>
std::errc parse_number(std::string_view text, T& value) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return text.empty() || end != text.data() + text.size() ? std::errc::invalid_argument : error;
}

template <class T>
T parse_floating_point(const Config& node, const std::string& path) {
  if (node.is_scalar() && !node.quoted()) {
    const std::string& text = node.text();
    if (text == ".inf" || text == "inf") return std::numeric_limits<T>::infinity();
    if (text == "-.inf" || text == "-inf") return -std::numeric_limits<T>::infinity();
    if (text == ".nan" || text == "nan") return std::numeric_limits<T>::quiet_NaN();
    T value = 0;
    const std::errc error = parse_number(text, value);
    if (error == std::errc()) return value;
    if (error == std::errc::result_out_of_range)
      throw_out_of_range(node.origin(), path,
                         fmt::format("0 or of a size from {} to {}", std::numeric_limits<T>::denorm_min(),
                                     std::numeric_limits<T>::max()),
                         text);
  }
  throw_wrong_type(node, path, "a number");
}

template <class T>
Config dump_floating_point(T value) {
  if (std::isnan(value)) return Config::scalar(".nan");
  if (std::isinf(value)) return Config::scalar(value > 0 ? ".inf" : "-.inf");
  return Config::scalar(fmt::format("{}", value));  // the shortest text that reads back as the same value
}

}  // namespace

void throw_wrong_type(const Config& node, std::string_view path, std::string_view expected) {
  refuse_broken_yaml(node);
  throw ConfigError(fmt::format("{}{}{}expected {}; got {}", node.origin().prefix(), path, path.empty() ? "" : ": ",
                                expected, node.describe()));
}

void throw_unknown_key(const Config::Entry& entry, std::string_view path, const std::vector<std::string>& valid) {
  const std::string inside = path.empty() ? "" : fmt::format(" in '{}'", path);
  throw ConfigError(fmt::format("{}unknown key '{}'{}{}", entry.origin.prefix(), entry.key, inside,
                                valid_names_hint(entry.key, valid)));
}

void throw_out_of_range(const Origin& origin, std::string_view path, std::string_view constraint,
                        std::string_view got) {
  throw ConfigError(out_of_range_message(origin, path, constraint, got));
}

void detail::rename_key(Config& node, const std::string& path, const std::string& former, const std::string& present) {
  const Config* const given = node.is_mapping() ? node.find(former) : nullptr;
  if (given == nullptr) return;
  const Config value = *given;
  const std::string in = path.empty() ? "" : path + ".";
  if (node.find(present) != nullptr)
    throw ConfigError(fmt::format("{}{}{} is an older spelling of {}, which is given as well; hint: leave {} out",
                                  value.origin().prefix(), in, former, present, former));
  log::rank_zero_info_once(
      fmt::format("{}{}{} is an older spelling of {}", value.origin().prefix(), in, former, present));
  node.erase(former);
  node.set(present, value);
}

TypedFormScope::TypedFormScope() : outer_(std::exchange(takes_typed_form, true)) {}
TypedFormScope::~TypedFormScope() { takes_typed_form = outer_; }
bool TypedFormScope::is_active() { return takes_typed_form; }

Config detail::keep_given(const Config& dumped, const Config& given) {
  if (takes_typed_form) return dumped;
  // A text that looks like a list or a mapping: what is written again is the text.
  if (dumped.is_scalar() && !given.is_scalar() && has_text(given) && dumped.text() == given.text())
    return Config::scalar(dumped.text(), dumped.quoted(), given.origin());
  if (!dumped.is_mapping()) return given;
  if (!given.is_mapping()) return dumped;
  Config kept = Config::mapping(given.origin());
  for (const auto& entry : dumped.entries()) {
    const auto found = std::find_if(given.entries().begin(), given.entries().end(),
                                    [&](const Config::Entry& candidate) { return candidate.key == entry.key; });
    if (found == given.entries().end())
      kept.set(entry.key, entry.value);
    else
      kept.set(entry.key, keep_given(entry.value, found->value), found->origin);
  }
  return kept;
}

std::string detail::one_of_names(const ValueNames& names) {
  std::string text = "one of ";
  for (const auto& [name, value] : names) text += (&name == &names.front().first ? "" : ", ") + name;
  return text;
}

Config detail::names_to_numbers(const Config& node, const std::string& path, const ValueNames& names) {
  if (node.is_null()) return node;
  if (node.is_scalar()) {
    for (const auto& [name, value] : names)
      if (name == node.text()) return Config::scalar(std::to_string(value), false, node.origin());
    throw_out_of_range(node.origin(), path, one_of_names(names), node.text());
  }
  if (node.is_sequence()) {
    std::vector<Config> items;
    for (size_t i = 0; i < node.items().size(); ++i)
      items.push_back(names_to_numbers(node.items()[i], fmt::format("{}[{}]", path, i), names));
    return Config::sequence(std::move(items), node.origin());
  }
  Config result = Config::mapping(node.origin());
  for (const auto& [key, origin, value] : node.entries())
    result.set(key, names_to_numbers(value, path + "." + key, names), origin);
  return result;
}

Config detail::numbers_to_names(const Config& node, const ValueNames& names) {
  if (node.is_scalar()) {
    for (const auto& [name, value] : names)
      if (std::to_string(value) == node.text()) return ConfigCodec<std::string>::dump(name);
    return node;
  }
  if (node.is_sequence()) {
    std::vector<Config> items;
    for (const auto& item : node.items()) items.push_back(numbers_to_names(item, names));
    return Config::sequence(std::move(items));
  }
  if (!node.is_mapping()) return node;
  Config result = Config::mapping();
  for (const auto& entry : node.entries()) result.set(entry.key, numbers_to_names(entry.value, names));
  return result;
}

namespace detail {

SchemaFields::Field& SchemaFields::insert(Field field) {
  const auto place = std::upper_bound(fields_.begin(), fields_.end(), field.offset,
                                      [](size_t offset, const Field& other) { return offset < other.offset; });
  return *fields_.insert(place, std::move(field));
}

namespace {

void* value_of(void* options, const SchemaFields::Field& field) {
  return static_cast<std::byte*>(options) + field.offset;
}
const void* value_of(const void* options, const SchemaFields::Field& field) {
  return static_cast<const std::byte*>(options) + field.offset;
}

/// Sets a field to what is given, and checks it.
void set(const SchemaFields::Field& field, void* value, const Config& given, const std::string& path) {
  if (field.doc.type == ConfigCodec<Config>::type_name()) refuse_broken_yaml(given);
  const auto check_all = [&] {
    for (const auto& check : field.checks) check(value, given, path);
  };
  try {
    field.parse(value, given, path);
  } catch (const BeyondTypeError& error) {
    // A limit of the field's own says more than its type's. Those of a list are about the whole of it.
    if (given.is_scalar()) {
      field.parse(value, error.nearest(), path);
      check_all();
    }
    throw;
  }
  check_all();
}

}  // namespace

void SchemaFields::apply(void* options, const Config& node, const std::string& path) const {
  if (node.is_null()) return;
  if (!node.is_mapping()) throw_wrong_type(node, path, "a mapping of options");
  const Config present = with_present_names(node, path);
  for (const auto& item : present.entries()) {
    const Field* field = find(item.key);
    if (field == nullptr) throw_unknown_key(item, path, names());
    set(*field, value_of(options, *field), item.value, path.empty() ? item.key : path + "." + item.key);
  }
}

void SchemaFields::validate(const void* options, const std::string& path) const {
  for (const auto& field : fields_)
    for (const auto& check : field.checks)
      check(value_of(options, field), Config{}, path.empty() ? field.doc.name : path + "." + field.doc.name);
}

Config SchemaFields::dump(const void* options) const {
  Config node = Config::mapping();
  for (const auto& field : fields_) node.set(field.doc.name, field.dump(value_of(options, field)));
  return node;
}

std::vector<FieldDoc> SchemaFields::docs() const {
  std::vector<FieldDoc> docs;
  for (const auto& field : fields_) docs.push_back(field.doc);
  return docs;
}

std::vector<std::string> SchemaFields::names() const {
  std::vector<std::string> names;
  for (const auto& field : fields_) names.push_back(field.doc.name);
  return names;
}

Config SchemaFields::with_present_names(const Config& node, const std::string& path) const {
  Config present = node;
  for (const auto& field : fields_)
    if (!field.former_name.empty()) rename_key(present, path, field.former_name, field.doc.name);
  return present;
}

const SchemaFields::Field* SchemaFields::find(const std::string& name) const {
  for (const auto& field : fields_)
    if (field.doc.name == name) return &field;
  return nullptr;
}

}  // namespace detail

bool ConfigCodec<bool>::parse(const Config& node, const std::string& path) {
  if (node.is_scalar() && !node.quoted()) {
    const std::string& text = node.text();
    if (text == "true" || text == "True" || text == "TRUE" || text == "yes" || text == "on") return true;
    if (text == "false" || text == "False" || text == "FALSE" || text == "no" || text == "off") return false;
  }
  throw_wrong_type(node, path, "true or false");
}

Config ConfigCodec<bool>::dump(bool value) { return Config::scalar(value ? "true" : "false"); }

template <Integer T>
T ConfigCodec<T>::parse(const Config& node, const std::string& path) {
  if (!node.is_scalar() || node.quoted()) throw_wrong_type(node, path, "an integer");
  T value = 0;
  const std::errc error = parse_number(node.text(), value);
  int64_t negative = 0;  // which an unsigned type does not even parse
  if (error == std::errc::result_out_of_range ||
      (error != std::errc() && parse_number(node.text(), negative) == std::errc())) {
    const bool is_below = node.text().starts_with('-');
    const T nearest = is_below ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
    throw BeyondTypeError(
        out_of_range_message(node.origin(), path, fmt::format("at {} {}", is_below ? "least" : "most", nearest),
                             node.text()),
        Config::scalar(std::to_string(nearest), false, node.origin()));
  }
  if (error != std::errc()) throw_wrong_type(node, path, "an integer");
  return value;
}

template <Integer T>
Config ConfigCodec<T>::dump(T value) {
  return Config::scalar(std::to_string(value));
}

template struct ConfigCodec<signed char>;
template struct ConfigCodec<unsigned char>;
template struct ConfigCodec<short>;
template struct ConfigCodec<unsigned short>;
template struct ConfigCodec<int>;
template struct ConfigCodec<unsigned int>;
template struct ConfigCodec<long>;
template struct ConfigCodec<unsigned long>;
template struct ConfigCodec<long long>;
template struct ConfigCodec<unsigned long long>;

double ConfigCodec<double>::parse(const Config& node, const std::string& path) {
  return parse_floating_point<double>(node, path);
}
Config ConfigCodec<double>::dump(double value) { return dump_floating_point(value); }

float ConfigCodec<float>::parse(const Config& node, const std::string& path) {
  return parse_floating_point<float>(node, path);
}
Config ConfigCodec<float>::dump(float value) { return dump_floating_point(value); }

std::filesystem::path ConfigCodec<std::filesystem::path>::parse(const Config& node, const std::string& path) {
  if (!has_text(node)) throw_wrong_type(node, path, "a path");
  return node.text();
}

Config ConfigCodec<std::filesystem::path>::dump(const std::filesystem::path& value) {
  return ConfigCodec<std::string>::dump(value.string());
}

std::string ConfigCodec<std::string>::parse(const Config& node, const std::string& path) {
  if (!has_text(node)) throw_wrong_type(node, path, "a string");
  return node.text();
}

Config ConfigCodec<std::string>::dump(const std::string& value) {
  // Quoted where the plain text would read back as something else than this string.
  double number = 0;
  const bool looks_otherwise = value.empty() || value == "null" || value == "~" || value == "true" ||
                               value == "false" || parse_number(value, number) == std::errc();
  return Config::scalar(value, looks_otherwise);
}

}  // namespace levin
