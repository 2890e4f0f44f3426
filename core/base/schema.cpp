#include <levin/core/base/schema.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace levin {
namespace {

std::string place(const Origin& origin) { return origin.source.empty() ? "" : origin.describe() + ": "; }

/// Whole-text conversion; a leading '+' is allowed.
template <class T>
bool parse_number(std::string_view text, T& value) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

}  // namespace

void throw_wrong_type(const Config& node, std::string_view path, std::string_view expected) {
  throw ConfigError(fmt::format("{}{}: expected {}; got {}", place(node.origin()), path, expected, node.describe()));
}

void throw_unknown_key(const Config::Entry& entry, std::string_view path, const std::vector<std::string>& valid) {
  const std::string inside = path.empty() ? "" : fmt::format(" in '{}'", path);
  throw ConfigError(fmt::format("{}unknown key '{}'{}{}", place(entry.origin), entry.key, inside,
                                valid_names_hint(entry.key, valid)));
}

void throw_out_of_range(const Origin& origin, std::string_view path, std::string_view constraint,
                        std::string_view got) {
  throw ConfigError(fmt::format("{}{} must be {}; got {}", place(origin), path, constraint, got));
}

Config detail::keep_given(const Config& dumped, const Config& given) {
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

bool ConfigCodec<bool>::parse(const Config& node, const std::string& path) {
  if (node.is_scalar() && !node.quoted()) {
    const std::string& text = node.text();
    if (text == "true" || text == "True" || text == "TRUE" || text == "yes" || text == "on") return true;
    if (text == "false" || text == "False" || text == "FALSE" || text == "no" || text == "off") return false;
  }
  throw_wrong_type(node, path, "true or false");
}

Config ConfigCodec<bool>::dump(bool value) { return Config::scalar(value ? "true" : "false"); }

int64_t ConfigCodec<int64_t>::parse(const Config& node, const std::string& path) {
  int64_t value = 0;
  if (!node.is_scalar() || node.quoted() || !parse_number(node.text(), value))
    throw_wrong_type(node, path, "an integer");
  return value;
}

Config ConfigCodec<int64_t>::dump(int64_t value) { return Config::scalar(std::to_string(value)); }

double ConfigCodec<double>::parse(const Config& node, const std::string& path) {
  double value = 0;
  if (node.is_scalar() && !node.quoted()) {
    const std::string& text = node.text();
    if (text == ".inf" || text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-.inf" || text == "-inf") return -std::numeric_limits<double>::infinity();
    if (text == ".nan" || text == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (parse_number(text, value)) return value;
  }
  throw_wrong_type(node, path, "a number");
}

Config ConfigCodec<double>::dump(double value) {
  if (std::isnan(value)) return Config::scalar(".nan");
  if (std::isinf(value)) return Config::scalar(value > 0 ? ".inf" : "-.inf");
  std::string text = fmt::format("{}", value);  // the shortest text that reads back as the same value
  return Config::scalar(std::move(text));
}

std::string ConfigCodec<std::string>::parse(const Config& node, const std::string& path) {
  if (!node.is_scalar()) throw_wrong_type(node, path, "a string");
  return node.text();
}

Config ConfigCodec<std::string>::dump(const std::string& value) {
  // Quoted where the plain text would read back as something else than this string.
  double number = 0;
  const bool looks_otherwise = value.empty() || value == "null" || value == "~" || value == "true" ||
                               value == "false" || parse_number(value, number);
  return Config::scalar(value, looks_otherwise);
}

}  // namespace levin
