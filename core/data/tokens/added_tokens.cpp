#include <levin/core/data/tokens/added_tokens.h>

#include <levin/core/data/tokens/unicode_text.h>

#include <fmt/format.h>

#include <utility>

namespace levin::data {

AddedTokens::AddedTokens(const nlohmann::json& tokens, const Normalizers& normalizers, Vocabulary& vocabulary,
                         const TokenizerFile& file) {
  std::array<std::vector<std::pair<std::string, int32_t>>, 2> spellings;
  for (const nlohmann::json& token : tokens) {
    const auto content = token.at("content").get<std::string>();
    const int32_t id = file.id(token.at("id"), content);
    if (content.empty()) file.fail(fmt::format("is damaged: the added token '' has the id {}", id));
    NormalizedText spelling(content);
    const bool is_normalized = token.value("normalized", false);
    if (is_normalized) normalizers.apply(spelling);
    // A model's token of the same text keeps its id, and texts are made of the normalized spelling, as there.
    const auto known = vocabulary.ids.find(content);
    const int32_t kept = known == vocabulary.ids.end() ? id : known->second;
    vocabulary.add(content, kept);
    vocabulary.tokens.insert_or_assign(kept, spelling.text);
    if (token.value("special", false)) special_.insert(content);
    const size_t stage = is_normalized ? 1 : 0;
    spellings[stage].emplace_back(std::move(spelling.text), static_cast<int32_t>(matchers_[stage].tokens.size()));
    matchers_[stage].tokens.push_back({.id = kept,
                                       .strips_left = token.value("lstrip", false),
                                       .strips_right = token.value("rstrip", false),
                                       .is_word = token.value("single_word", false)});
  }
  for (size_t stage = 0; stage < matchers_.size(); ++stage) {
    std::vector<std::pair<std::string_view, int32_t>> entries(spellings[stage].begin(), spellings[stage].end());
    for (const auto& [text, token] : entries)
      if (!text.empty()) matchers_[stage].begins[static_cast<unsigned char>(text.front())] = true;
    matchers_[stage].trie = ByteTrie(std::move(entries));
  }
}

void AddedTokens::split(std::string_view text, Stage stage,
                        c10::function_ref<void(std::string_view part, int32_t id)> give) const {
  const Matcher& matcher = matchers_[static_cast<size_t>(stage)];
  size_t done = 0;
  for (size_t place = 0; place < text.size() && !matcher.tokens.empty();) {
    size_t length = 0;
    int32_t found = 0;
    if (matcher.begins[static_cast<unsigned char>(text[place])])
      matcher.trie.for_each_prefix(text.substr(place), [&](size_t key_length, int32_t token) {
        length = key_length;
        found = token;
      });
    if (length == 0) {
      ++place;
      continue;
    }
    size_t begin = place;
    size_t end = place + length;
    place = end;
    const Token& token = matcher.tokens[static_cast<size_t>(found)];
    if (token.is_word) {
      size_t next = end;
      if ((begin > 0 && is_word_character(code_point_before(text, begin))) ||
          (end < text.size() && is_word_character(take_code_point(text, next))))
        continue;
    }
    while (token.strips_left && begin > done && is_white_space(code_point_before(text, begin)))
      begin = character_before(text, begin);
    while (token.strips_right && end < text.size()) {
      size_t next = end;
      if (!is_white_space(take_code_point(text, next))) break;
      end = next;
    }
    if (begin > done) give(text.substr(done, begin - done), -1);
    give(text.substr(begin, end - begin), token.id);
    done = end;
  }
  if (done < text.size()) give(text.substr(done), -1);
}

}  // namespace levin::data
