#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace levin {

/// Source of the variables that a launcher sets.
class EnvironmentVariables {
 public:
  virtual ~EnvironmentVariables() = default;
  /// Value of a variable; nothing for one that is not set or is empty.
  virtual std::optional<std::string> find(const std::string& name) const = 0;

  bool has(const std::string& name) const { return find(name).has_value(); }
};

/// Variables of this process.
class ProcessVariables : public EnvironmentVariables {
 public:
  std::optional<std::string> find(const std::string& name) const override;
};

/// Reads the variables of one launcher. What is missing or wrong is a levin::Error that names launcher and variable.
class LauncherVariables {
 public:
  LauncherVariables(const EnvironmentVariables& variables, std::string launcher);

  bool has(const std::string& name) const { return variables_.has(name); }
  /// Text of a variable. `hint` says what to do when it is missing.
  std::string text(const std::string& name, const std::string& hint = "") const;
  std::string text_or(const std::string& name, const std::string& otherwise) const;

  int64_t number(const std::string& name, int64_t lowest, int64_t highest = std::numeric_limits<int64_t>::max()) const;
  int64_t number_or(const std::string& name, int64_t otherwise, int64_t lowest = 0) const;
  /// A number that is at least 1.
  int64_t size(const std::string& name) const { return number(name, 1); }
  /// A number of ranks that is at most the `whole`, which the variable `whole_name` gave.
  int64_t part_size(const std::string& name, const std::string& whole_name, int64_t whole) const;
  /// A rank from 0 to `size` - 1; `size_name` is the variable that gave the size.
  int64_t rank(const std::string& name, const std::string& size_name, int64_t size) const;
  int64_t port(const std::string& name) const { return number(name, 1, 65535); }

  /// Throws levin::Error for this launcher.
  [[noreturn]] void fail(const std::string& message) const;

 private:
  const EnvironmentVariables& variables_;
  const std::string launcher_;
};

}  // namespace levin
