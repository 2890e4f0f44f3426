#include <levin/core/options/option_types.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace levin {
namespace {

constexpr const char* kDurationForm = "a time as DD:HH:MM:SS";

/// Digits alone, at least `min_digits` of them.
std::optional<int64_t> parse_digits(std::string_view text, size_t min_digits, size_t max_digits) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool digits_only = !text.empty() && text.front() != '-' && end == text.data() + text.size();
  if (error != std::errc() || !digits_only || text.size() < min_digits || text.size() > max_digits) return std::nullopt;
  return value;
}

/// For options that several types may have.
template <class T>
std::optional<T> try_parse(const Config& node) {
  try {
    return ConfigCodec<T>::parse(node, "");
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

/// A fraction keeps its point, so that 1.0 (all) does not read back as 1 (one batch).
Config dump_fraction(double value) {
  std::string text = ConfigCodec<double>::dump(value).text();
  if (text.find_first_of(".eni") == std::string::npos) text += ".0";
  return Config::scalar(std::move(text));
}

std::chrono::seconds require_duration(const char* text) {
  const auto duration = parse_duration(text);
  if (!duration) throw ConfigError(fmt::format("expected {}; got '{}'", kDurationForm, text));
  return *duration;
}

}  // namespace

int64_t BatchLimit::resolve(std::optional<int64_t> available, const std::string& option) const {
  if (is_count()) return available ? std::min(*available, count()) : count();
  if (is_zero()) return 0;
  if (is_everything()) return available.value_or(-1);
  if (!available)
    throw ConfigError(
        fmt::format("{} is a fraction, but the loader's data set has no size; got {}; valid: a number of "
                    "batches, 0.0 or 1.0",
                    option, fraction()));
  const auto batches = static_cast<int64_t>(static_cast<double>(*available) * fraction());
  if (batches == 0 && *available > 0)
    throw ConfigError(fmt::format("{} leaves less than one batch: {} of {}; hint: give a number of batches, such as 1",
                                  option, fraction(), *available));
  return batches;
}

BatchLimit ConfigCodec<BatchLimit>::parse(const Config& node, const std::string& path) {
  if (const auto batches = try_parse<int64_t>(node)) return *batches;
  if (const auto fraction = try_parse<double>(node)) return *fraction;
  throw_wrong_type(node, path, "a number of batches (10) or a fraction (0.5)");
}

Config ConfigCodec<BatchLimit>::dump(const BatchLimit& value) {
  return value.is_count() ? ConfigCodec<int64_t>::dump(value.count()) : dump_fraction(value.fraction());
}

CheckInterval::CheckInterval(const char* time) : value_(require_duration(time)) {}

CheckInterval ConfigCodec<CheckInterval>::parse(const Config& node, const std::string& path) {
  if (const auto batches = try_parse<int64_t>(node)) return *batches;
  if (const auto fraction = try_parse<double>(node)) return *fraction;
  if (node.is_scalar())
    if (const auto duration = parse_duration(node.text())) return *duration;
  throw_wrong_type(node, path, "a number of batches (100), a fraction of the epoch (0.25) or a time (00:01:00:00)");
}

Config ConfigCodec<CheckInterval>::dump(const CheckInterval& value) {
  if (const auto* batches = std::get_if<int64_t>(&value.value())) return ConfigCodec<int64_t>::dump(*batches);
  if (const auto* fraction = std::get_if<double>(&value.value())) return dump_fraction(*fraction);
  return Config::scalar(format_duration(std::get<std::chrono::seconds>(value.value())));
}

FastDevRun ConfigCodec<FastDevRun>::parse(const Config& node, const std::string& path) {
  if (const auto batches = try_parse<int64_t>(node)) return FastDevRun(*batches);
  if (const auto on = try_parse<bool>(node)) return *on;
  throw_wrong_type(node, path, "true, false or a number of batches");
}

Config ConfigCodec<FastDevRun>::dump(const FastDevRun& value) {
  return value.batches() > 1 ? ConfigCodec<int64_t>::dump(value.batches())
                             : ConfigCodec<bool>::dump(value.batches() != 0);
}

Determinism::Determinism(const char* word) : level_(Level::kWarn) {
  if (std::string_view(word) != "warn")
    throw ConfigError(fmt::format("deterministic is not understood; got '{}'; valid: true, false, warn", word));
}

Determinism ConfigCodec<Determinism>::parse(const Config& node, const std::string& path) {
  if (node.is_scalar() && node.text() == "warn") return Determinism(Determinism::Level::kWarn);
  if (const auto on = try_parse<bool>(node)) return *on;
  throw_wrong_type(node, path, "true, false or warn");
}

Config ConfigCodec<Determinism>::dump(const Determinism& value) {
  if (value.level() == Determinism::Level::kWarn) return Config::scalar("warn");
  return ConfigCodec<bool>::dump(value.level() == Determinism::Level::kOn);
}

GraphMode::GraphMode(const char* word) {
  if (std::string_view(word) == "auto")
    level_ = Level::kAuto;
  else if (std::string_view(word) == "required")
    level_ = Level::kRequired;
  else
    throw ConfigError(fmt::format("graph is not understood; got '{}'; valid: true, false, auto, required", word));
}

GraphMode ConfigCodec<GraphMode>::parse(const Config& node, const std::string& path) {
  if (node.is_scalar() && node.text() == "auto") return GraphMode(GraphMode::Level::kAuto);
  if (node.is_scalar() && node.text() == "required") return GraphMode(GraphMode::Level::kRequired);
  if (const auto on = try_parse<bool>(node)) return *on;
  throw_wrong_type(node, path, "true, false, auto or required");
}

Config ConfigCodec<GraphMode>::dump(const GraphMode& value) {
  if (value.level() == GraphMode::Level::kAuto) return Config::scalar("auto");
  if (value.level() == GraphMode::Level::kRequired) return Config::scalar("required");
  return ConfigCodec<bool>::dump(value.level() == GraphMode::Level::kOn);
}

TimeLimit::TimeLimit(const char* text) : seconds_(require_duration(text)) {}

TimeLimit ConfigCodec<TimeLimit>::parse(const Config& node, const std::string& path) {
  if (node.is_scalar())
    if (const auto duration = parse_duration(node.text())) return *duration;
  throw_wrong_type(node, path, kDurationForm);
}

Config ConfigCodec<TimeLimit>::dump(const TimeLimit& value) { return Config::scalar(format_duration(value.seconds())); }

std::optional<std::chrono::seconds> parse_duration(std::string_view text) {
  // Days may have any number of digits up to eight (some hundred thousand years).
  constexpr std::array<size_t, 4> kMinDigits = {1, 2, 2, 2};
  constexpr std::array<size_t, 4> kMaxDigits = {8, 2, 2, 2};
  constexpr std::array<int64_t, 4> kSeconds = {86'400, 3'600, 60, 1};
  int64_t total = 0;
  for (size_t i = 0; i < kSeconds.size(); ++i) {
    const size_t colon = text.find(':');
    if ((colon == std::string_view::npos) != (i + 1 == kSeconds.size())) return std::nullopt;
    const auto value = parse_digits(text.substr(0, colon), kMinDigits[i], kMaxDigits[i]);
    if (!value) return std::nullopt;
    total += *value * kSeconds[i];
    text = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  }
  return std::chrono::seconds(total);
}

std::string format_duration(std::chrono::seconds duration) {
  const int64_t total = duration.count();
  return fmt::format("{:02}:{:02}:{:02}:{:02}", total / 86'400, total / 3'600 % 24, total / 60 % 60, total % 60);
}

}  // namespace levin
