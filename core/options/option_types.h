#pragma once

#include <levin/core/base/schema.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace levin {

/// Limit of the batches of a loader: an integer is a count, a number with a point a fraction (1 is one batch, 1.0 all).
class BatchLimit {
 public:
  BatchLimit() : value_(1.0) {}
  BatchLimit(int count) : value_(int64_t{count}) {}  // NOLINT(google-explicit-constructor)
  BatchLimit(int64_t count) : value_(count) {}       // NOLINT(google-explicit-constructor)
  BatchLimit(double fraction) : value_(fraction) {}  // NOLINT(google-explicit-constructor)

  bool is_count() const { return std::holds_alternative<int64_t>(value_); }
  int64_t count() const { return std::get<int64_t>(value_); }
  double fraction() const { return std::get<double>(value_); }
  bool is_zero() const { return is_count() ? count() == 0 : fraction() == 0.0; }
  bool is_everything() const { return !is_count() && fraction() == 1.0; }
  /// Batches to use of a loader that has `available` (nothing: unsized, where a fraction between 0 and 1 is refused
  /// with ConfigError naming `option`). The result is -1 for all of an unsized loader.
  int64_t resolve(std::optional<int64_t> available, const std::string& option) const;

 private:
  std::variant<int64_t, double> value_;
};

template <>
struct ConfigCodec<BatchLimit> {
  static std::string type_name() { return "integer (batches) or number (fraction)"; }
  static BatchLimit parse(const Config& node, const std::string& path);
  static Config dump(const BatchLimit& value);
};

/// Interval of validation inside an epoch: a number of batches, a fraction of the epoch, or a time.
class CheckInterval {
 public:
  CheckInterval() : value_(1.0) {}
  CheckInterval(int batches) : value_(int64_t{batches}) {}    // NOLINT(google-explicit-constructor)
  CheckInterval(int64_t batches) : value_(batches) {}         // NOLINT(google-explicit-constructor)
  CheckInterval(double fraction) : value_(fraction) {}        // NOLINT(google-explicit-constructor)
  CheckInterval(std::chrono::seconds time) : value_(time) {}  // NOLINT(google-explicit-constructor)
  /// "DD:HH:MM:SS"
  CheckInterval(const char* time);  // NOLINT(google-explicit-constructor)

  const std::variant<int64_t, double, std::chrono::seconds>& value() const { return value_; }

 private:
  std::variant<int64_t, double, std::chrono::seconds> value_;
};

template <>
struct ConfigCodec<CheckInterval> {
  static std::string type_name() { return "integer (batches), number (fraction) or time (DD:HH:MM:SS)"; }
  static CheckInterval parse(const Config& node, const std::string& path);
  static Config dump(const CheckInterval& value);
};

/// `false`, `true` (one batch of each stage) or a number of batches.
class FastDevRun {
 public:
  FastDevRun() = default;
  FastDevRun(bool on) : batches_(on ? 1 : 0) {}   // NOLINT(google-explicit-constructor)
  FastDevRun(int batches) : batches_(batches) {}  // NOLINT(google-explicit-constructor)
  explicit FastDevRun(int64_t batches) : batches_(batches) {}
  /// Batches of each stage; 0 when off.
  int64_t batches() const { return batches_; }

 private:
  int64_t batches_ = 0;
};

template <>
struct ConfigCodec<FastDevRun> {
  static std::string type_name() { return "boolean or integer (batches)"; }
  static FastDevRun parse(const Config& node, const std::string& path);
  static Config dump(const FastDevRun& value);
};

/// `false`, `true` (an operator without a deterministic form throws) or "warn" (it warns).
class Determinism {
 public:
  enum class Level { kOff, kOn, kWarn };
  Determinism() = default;
  Determinism(bool on) : level_(on ? Level::kOn : Level::kOff) {}  // NOLINT(google-explicit-constructor)
  Determinism(const char* word);                                   // NOLINT(google-explicit-constructor)
  explicit Determinism(Level level) : level_(level) {}
  Level level() const { return level_; }

 private:
  Level level_ = Level::kOff;
};

template <>
struct ConfigCodec<Determinism> {
  static std::string type_name() { return "boolean or 'warn'"; }
  static Determinism parse(const Config& node, const std::string& path);
  static Config dump(const Determinism& value);
};

/// `false`; `true` (steps are recorded where that is possible); "auto" (where that is faster as well); "required" (an
/// error says why they cannot be recorded).
class GraphMode {
 public:
  enum class Level { kOff, kOn, kAuto, kRequired };
  GraphMode() = default;
  GraphMode(bool on) : level_(on ? Level::kOn : Level::kOff) {}  // NOLINT(google-explicit-constructor)
  GraphMode(const char* word);                                   // NOLINT(google-explicit-constructor)
  explicit GraphMode(Level level) : level_(level) {}
  Level level() const { return level_; }

 private:
  Level level_ = Level::kOff;
};

template <>
struct ConfigCodec<GraphMode> {
  static std::string type_name() { return "boolean, 'auto' or 'required'"; }
  static GraphMode parse(const Config& node, const std::string& path);
  static Config dump(const GraphMode& value);
};

/// A length of time written "DD:HH:MM:SS".
class TimeLimit {
 public:
  TimeLimit(const char* text);                                    // NOLINT(google-explicit-constructor)
  TimeLimit(std::chrono::seconds seconds) : seconds_(seconds) {}  // NOLINT(google-explicit-constructor)
  std::chrono::seconds seconds() const { return seconds_; }

 private:
  std::chrono::seconds seconds_;
};

template <>
struct ConfigCodec<TimeLimit> {
  static std::string type_name() { return "time (DD:HH:MM:SS)"; }
  static TimeLimit parse(const Config& node, const std::string& path);
  static Config dump(const TimeLimit& value);
};

/// Parses "DD:HH:MM:SS"; nothing for any other text.
std::optional<std::chrono::seconds> parse_duration(std::string_view text);
std::string format_duration(std::chrono::seconds duration);

}  // namespace levin
