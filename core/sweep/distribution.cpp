#include <levin/core/sweep/distribution.h>

#include <levin/core/base/error.h>
#include <levin/core/base/schema.h>
#include <levin/core/base/seed.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace levin::sweep {
namespace {

const std::vector<std::string>& kinds() {
  static const std::vector<std::string> names = {"uniform", "log_uniform", "int_uniform", "choice"};
  return names;
}

[[noreturn]] void throw_bad_bounds(const Config& node, const std::string& path, const std::string& wanted) {
  throw ConfigError(fmt::format("{}{} must be {}; got {}", node.origin().prefix(), path, wanted, node.to_flow()));
}

template <class T>
std::array<T, 2> bounds_of(const Config& node, const std::string& path) {
  const auto bounds = ConfigCodec<std::array<T, 2>>::parse(node, path);
  if (bounds[0] > bounds[1]) throw_bad_bounds(node, path, "[smallest, largest]");
  return bounds;
}

/// Rounded to six digits, but not out of its bounds.
Config number(double value, const std::array<double, 2>& bounds, const Origin& origin) {
  const std::string text = fmt::format("{:.6g}", value);
  const double rounded = std::strtod(text.c_str(), nullptr);
  const double within = std::clamp(rounded, bounds[0], bounds[1]);
  return Config::scalar(within == rounded ? text : fmt::format("{}", within), false, origin);
}

}  // namespace

bool is_distribution(const Config& node) {
  return node.is_mapping() && node.entries().size() == 1 && node.entries().front().value.is_sequence();
}

Config draw(const Config& distribution, const std::string& path, uint64_t seed, uint64_t sample, uint64_t stream) {
  if (!is_distribution(distribution))
    throw_wrong_type(distribution, path, "a distribution such as {log_uniform: [0.0001, 0.1]}");
  const auto& [kind, origin, values] = distribution.entries().front();
  const std::string place = path + "." + kind;
  // 53 bits, in [0, 1).
  const double position = static_cast<double>(mix_seed(seed, sample, stream) >> 11) * 0x1p-53;
  if (kind == "uniform") {
    const auto bounds = bounds_of<double>(values, place);
    return number(bounds[0] + position * (bounds[1] - bounds[0]), bounds, values.origin());
  }
  if (kind == "log_uniform") {
    const auto bounds = bounds_of<double>(values, place);
    if (bounds[0] <= 0) throw_bad_bounds(values, place, "above 0");
    const double low = std::log(bounds[0]);
    return number(std::exp(low + position * (std::log(bounds[1]) - low)), bounds, values.origin());
  }
  if (kind == "int_uniform") {
    const auto [low, high] = bounds_of<int64_t>(values, place);
    const auto count = static_cast<double>(high) - static_cast<double>(low) + 1;
    return Config::scalar(std::to_string(std::min(high, low + static_cast<int64_t>(position * count))), false,
                          values.origin());
  }
  if (kind == "choice") {
    if (values.items().empty()) throw_bad_bounds(values, place, "a list of values");
    return values.items()[static_cast<size_t>(position * static_cast<double>(values.items().size()))];
  }
  throw ConfigError(
      fmt::format("{}{}: unknown distribution '{}'{}", origin.prefix(), path, kind, valid_names_hint(kind, kinds())));
}

}  // namespace levin::sweep
