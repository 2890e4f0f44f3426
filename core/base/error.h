#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// A mistake that the user can mend. The message reads
/// `[component] what is wrong; got X; valid: ...; hint` and is meant to be shown as it is.
class Error : public std::runtime_error {
 public:
  Error(std::string_view component, std::string_view message);
  const std::string& component() const { return component_; }

 private:
  std::string component_;
};

/// A wrong option, key or value in code, in YAML or on the command line.
class ConfigError : public Error {
 public:
  explicit ConfigError(std::string_view message) : Error("config", message) {}
};

/// A broken invariant of Levin itself: a bug to report, never the user's mistake.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Returns the candidate nearest to `name` by edit distance; empty when none is near enough to be a typing error.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

/// Returns `; did you mean 'x'?` or nothing, followed by `; valid: a, b, c`.
std::string valid_names_hint(std::string_view name, std::span<const std::string> candidates);

/// Returns "1 rank", "2 ranks"; for nouns that take an s.
std::string counted(int64_t count, std::string_view noun);

/// Joins the parts: "a, b, c".
std::string join(std::span<const std::string> parts, std::string_view separator = ", ");

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, std::string_view message);
}  // namespace detail
}  // namespace levin

/// Checks an invariant of Levin's own code; throws levin::InternalError.
#define LEVIN_CHECK(condition, message)                                                       \
  do {                                                                                        \
    if (!(condition)) ::levin::detail::check_failed(__FILE__, __LINE__, #condition, message); \
  } while (false)
