#include <levin/core/data/tokens/byte_level.h>

#include <levin/core/data/tokens/unicode_text.h>

#include <cstdint>

namespace levin::data {

namespace {

struct ByteCharacters {
  static constexpr uint32_t kMost = 512;
  std::array<std::string, 256> characters;
  std::array<int16_t, kMost> bytes{};

  ByteCharacters() {
    bytes.fill(-1);
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool is_visible = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      const uint32_t point = is_visible ? byte : next++;
      append_code_point(characters[byte], point);
      bytes[point] = static_cast<int16_t>(byte);
    }
  }
};

const ByteCharacters& all_byte_characters() {
  static const ByteCharacters all;
  return all;
}

}  // namespace

const std::array<std::string, 256>& byte_characters() { return all_byte_characters().characters; }

std::optional<std::string> bytes_of_characters(std::string_view token) {
  const auto& bytes = all_byte_characters().bytes;
  std::string result;
  for (size_t at = 0; at < token.size();) {
    const uint32_t point = take_code_point(token, at);
    if (point >= ByteCharacters::kMost || bytes[point] < 0) return std::nullopt;
    result += static_cast<char>(bytes[point]);
  }
  return result;
}

}  // namespace levin::data
