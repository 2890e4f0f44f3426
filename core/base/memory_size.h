#pragma once

#include <levin/core/base/schema.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace levin {

/// Bytes, as a number or with a unit: `80GiB`, `24 GB`, `512MiB`; null: unset.
struct MemorySize {
  std::optional<int64_t> bytes = {};
};

/// Returns the bytes that such a text says, or nothing where it says none, or none above 0.
std::optional<int64_t> parse_bytes(std::string_view text);

/// Returns a size in words: "1.5 MiB".
std::string size_text(uint64_t bytes);

template <>
struct ConfigCodec<MemorySize> {
  static std::string type_name() { return "size such as 80GiB, bytes, or null"; }
  static MemorySize parse(const Config& node, const std::string& path);
  static Config dump(const MemorySize& value);
};

}  // namespace levin
