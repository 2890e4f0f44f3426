#include <levin/strategies/environments/environment_variables.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <utility>

namespace levin {

std::optional<std::string> ProcessVariables::find(const std::string& name) const {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

LauncherVariables::LauncherVariables(const EnvironmentVariables& variables, std::string launcher)
    : variables_(variables), launcher_(std::move(launcher)) {}

void LauncherVariables::fail(const std::string& message) const {
  throw Error("environment", launcher_ + ": " + message);
}

std::string LauncherVariables::text(const std::string& name, const std::string& hint) const {
  const auto value = variables_.find(name);
  if (!value) fail(fmt::format("the variable {} is not set{}", name, hint.empty() ? "" : "; hint: " + hint));
  return *value;
}

std::string LauncherVariables::text_or(const std::string& name, const std::string& otherwise) const {
  return variables_.find(name).value_or(otherwise);
}

int64_t LauncherVariables::number(const std::string& name, int64_t lowest, int64_t highest) const {
  const std::string value = text(name);
  const std::string valid = highest == std::numeric_limits<int64_t>::max()
                                ? fmt::format("a whole number from {}", lowest)
                                : fmt::format("a whole number from {} to {}", lowest, highest);
  int64_t number = 0;
  const char* end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end || number < lowest || number > highest)
    fail(fmt::format("the variable {} is wrong; got '{}'; valid: {}", name, value, valid));
  return number;
}

int64_t LauncherVariables::number_or(const std::string& name, int64_t otherwise, int64_t lowest) const {
  return has(name) ? number(name, lowest) : otherwise;
}

int64_t LauncherVariables::part_size(const std::string& name, const std::string& whole_name, int64_t whole) const {
  const int64_t part = size(name);
  if (part > whole) fail(fmt::format("{} is {}, but {} is only {}", name, part, whole_name, whole));
  return part;
}

int64_t LauncherVariables::rank(const std::string& name, const std::string& size_name, int64_t size) const {
  const int64_t rank = number(name, 0);
  if (rank >= size) fail(fmt::format("{} is {}, but {} is {}; valid: 0 to {}", name, rank, size_name, size, size - 1));
  return rank;
}

}  // namespace levin
