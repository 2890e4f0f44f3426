#include <levin/core/data/tokens/token_decoders.h>

#include <levin/core/data/tokens/byte_level.h>
#include <levin/core/data/tokens/normalizers.h>
#include <levin/core/data/tokens/unicode_text.h>

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace levin::data {

namespace {

using Tokens = std::vector<std::string>;
using DecodingStep = std::function<void(Tokens&, const DecodingLimits&)>;
constexpr std::string_view kKnownDecoders = "ByteLevel, Metaspace, ByteFallback, Fuse, Replace, Strip, Sequence";
constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

void fuse(Tokens& tokens, const DecodingLimits&) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  tokens.assign(1, std::move(text));
}

void decode_byte_level(Tokens& tokens, const DecodingLimits& limits) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += bytes_of_characters(token).value_or(token);
  if (limits.skip_incomplete) bytes.resize(bytes.size() - incomplete_bytes(bytes));
  tokens.assign(1, with_replacements(bytes));
}

/// Returns the byte that a token such as "<0x0A>" stands for.
std::optional<char> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  int value = 0;
  for (const char digit : token.substr(3, 2)) {
    value *= 16;
    if (digit >= '0' && digit <= '9')
      value += digit - '0';
    else if (digit >= 'A' && digit <= 'F')
      value += digit - 'A' + 10;
    else if (digit >= 'a' && digit <= 'f')
      value += digit - 'a' + 10;
    else
      return std::nullopt;
  }
  return static_cast<char>(value);
}

void decode_bytes(Tokens& tokens, const DecodingLimits& limits) {
  Tokens texts;
  std::string bytes;
  const auto add_bytes = [&](size_t incomplete) {
    if (bytes.empty()) return;
    const std::string_view whole = std::string_view(bytes).substr(0, bytes.size() - incomplete);
    if (find_invalid_utf8(whole) == std::string_view::npos)
      texts.emplace_back(whole);
    else
      texts.insert(texts.end(), bytes.size(), std::string(kReplacementCharacter));
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = byte_of_token(token)) {
      bytes += *byte;
      continue;
    }
    add_bytes(0);
    texts.push_back(std::move(token));
  }
  add_bytes(limits.skip_incomplete ? incomplete_bytes(bytes) : 0);
  tokens = std::move(texts);
}

void replace_all(std::string& text, std::string_view what, std::string_view by) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
}

void strip_token(std::string& token, std::string_view character, size_t start, size_t stop) {
  std::string_view rest = token;
  for (size_t i = 0; i < start && rest.starts_with(character); ++i) rest.remove_prefix(character.size());
  for (size_t i = 0; i < stop && rest.ends_with(character); ++i) rest.remove_suffix(character.size());
  token = std::string(rest);
}

std::string read_character(const nlohmann::json& part, const char* key, const TokenizerFile& file) {
  auto text = part.at(key).get<std::string>();
  size_t end = 0;
  if (!text.empty()) take_code_point(text, end);
  if (text.empty() || end != text.size()) file.refuse(fmt::format("another {}", key), part, "one character");
  return text;
}

DecodingStep read_decoder(const nlohmann::json& part, const TokenizerFile& file) {
  const auto type = part.at("type").get<std::string>();
  if (type == "ByteLevel") return decode_byte_level;
  if (type == "ByteFallback") return decode_bytes;
  if (type == "Fuse") return fuse;
  if (type == "Replace")
    return [replace = read_replacement(part, file)](Tokens& tokens, const DecodingLimits& limits) {
      for (std::string& token : tokens) {
        NormalizedText text(token);
        text.most_bytes = limits.most_bytes;
        replace(text);
        token = std::move(text.text);
      }
    };
  if (type == "Strip")
    return [character = read_character(part, "content", file), start = part.at("start").get<size_t>(),
            stop = part.at("stop").get<size_t>()](Tokens& tokens, const DecodingLimits&) {
      for (std::string& token : tokens) strip_token(token, character, start, stop);
    };
  if (type == "Metaspace")
    return [replacement = read_character(part, "replacement", file),
            has_prefix = part.value("prepend_scheme", part.value("add_prefix_space", true) ? "always" : "never") !=
                         "never"](Tokens& tokens, const DecodingLimits&) {
      for (size_t i = 0; i < tokens.size(); ++i) replace_all(tokens[i], replacement, i == 0 && has_prefix ? "" : " ");
    };
  file.refuse(fmt::format("the decoder {}", type), part, kKnownDecoders);
}

}  // namespace

TokenDecoders::TokenDecoders(const nlohmann::json& part, bool of_bytes, const TokenizerFile& file)
    : joins_by_spaces_(part.is_null() && !of_bytes) {
  if (part.is_null() && of_bytes) steps_.emplace_back(decode_byte_level);
  for (const nlohmann::json* const element : file.elements(part, "decoders"))
    steps_.push_back(read_decoder(*element, file));
}

std::string TokenDecoders::decode(std::vector<std::string> tokens, bool skip_incomplete) const {
  size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  for (const auto& step : steps_)
    step(tokens, {.most_bytes = NormalizedText::most_bytes_of(bytes), .skip_incomplete = skip_incomplete});
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && joins_by_spaces_) text += ' ';
    text += tokens[i];
  }
  return text;
}

}  // namespace levin::data
