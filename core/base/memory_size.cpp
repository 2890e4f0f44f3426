#include <levin/core/base/memory_size.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <system_error>

namespace levin {

std::optional<int64_t> parse_bytes(std::string_view text) {
  static const std::map<std::string_view, double> kUnits = {
      {"", 1},      {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
  };
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit = text.substr(static_cast<size_t>(rest - text.data()));
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  const auto factor = kUnits.find(unit);
  if (error != std::errc() || factor == kUnits.end()) return std::nullopt;
  const double bytes = number * factor->second;
  if (!(bytes >= 1) || bytes > 0x1p62) return std::nullopt;
  return static_cast<int64_t>(bytes);
}

std::string size_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

MemorySize ConfigCodec<MemorySize>::parse(const Config& node, const std::string& path) {
  if (node.is_null()) return {};
  const auto bytes = node.is_scalar() ? parse_bytes(node.text()) : std::nullopt;
  if (!bytes) throw_wrong_type(node, path, "a size such as 80GiB, 24GB, 512MiB or a number of bytes, above 0");
  return {bytes};
}

Config ConfigCodec<MemorySize>::dump(const MemorySize& value) {
  return ConfigCodec<std::optional<int64_t>>::dump(value.bytes);
}

}  // namespace levin
