#include <levin/core/models/stop_texts.h>

#include <levin/core/base/error.h>
#include <levin/core/data/tokens/tokenizer.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>

namespace levin {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> characters;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin + 1;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) ++end;
    characters.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return characters;
}

/// The characters of all tokens; that of bytes which are none by themselves is U+FFFD.
std::set<std::string, std::less<>> characters_of(const data::Tokenizer& tokenizer) {
  std::set<std::string, std::less<>> known;
  for (int64_t id = 0; id < tokenizer.size(); ++id) {
    if (tokenizer.is_special(id)) continue;
    // Twice, since decoders leave out a space in front.
    const std::string text = tokenizer.decode(std::vector<int64_t>{id, id});
    for (const std::string_view character : characters_of(text))
      if (!known.contains(character)) known.emplace(character);
  }
  return known;
}

/// How many bytes at the end of a text may be the beginning of a stop text.
size_t begun_bytes(std::string_view text, const std::vector<std::string>& stop) {
  size_t most = 0;
  for (const std::string_view each : stop)
    for (size_t size = std::min(each.size() - 1, text.size()); size > most; --size)
      if (text.ends_with(each.substr(0, size))) most = size;
  return most;
}

}  // namespace

void check_stop_texts(const std::vector<std::string>& stop, const data::Tokenizer& tokenizer) {
  for (const std::string& each : stop) {
    const auto fail = [&](const std::string& what) {
      throw Error("generate", fmt::format("the stop text '{}' cannot occur: {}", each, what));
    };
    if (each.empty()) fail("it is empty");
    const std::vector<int64_t> ids = tokenizer.encode(each);  // throws for what is not UTF-8
    if (ids.size() == 1 && tokenizer.is_special(ids.front()))
      fail(fmt::format("it is a special token, which texts leave out; hint: end_tokens: [{}]", ids.front()));
    if (tokenizer.decode(ids).ends_with(each)) continue;
    const std::set<std::string, std::less<>> known = characters_of(tokenizer);
    for (const std::string_view character : characters_of(each))
      if (!known.contains(character) && (character.size() == 1 || !known.contains(kReplacement)))
        fail(fmt::format("no token of the tokenizer has '{}'", character));
  }
}

std::string StopTexts::add(std::string_view piece) {
  pending_ += piece;
  size_t end = std::string::npos;
  for (const std::string& each : *stop_) end = std::min(end, pending_.find(each));
  stopped_ = stopped_ || end != std::string::npos;
  if (end == std::string::npos) end = pending_.size() - begun_bytes(pending_, *stop_);
  std::string text = pending_.substr(0, end);
  pending_.erase(0, stopped_ ? pending_.size() : end);
  return text;
}

}  // namespace levin
