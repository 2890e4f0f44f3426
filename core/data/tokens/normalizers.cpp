#include <levin/core/data/tokens/normalizers.h>

#include <levin/core/data/tokens/unicode_text.h>
#include <levin/core/data/tokens/word_splitter.h>

#include <fmt/format.h>

#include <memory>
#include <utility>

namespace levin::data {

namespace {

constexpr std::string_view kKnownNormalizers =
    "NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, Strip, Sequence; hint: Precompiled is NFKC for most texts";

void check_size(const std::string& replaced, const NormalizedText& text, const TokenizerFile& file) {
  if (replaced.size() > text.most_bytes)
    file.fail(fmt::format("replaces parts of a text until it has more than {} bytes", text.most_bytes));
}

void strip(NormalizedText& text, bool left, bool right) {
  std::string_view rest = text.text;
  while (right && !rest.empty() && is_white_space(code_point_before(rest, rest.size())))
    rest = rest.substr(0, character_before(rest, rest.size()));
  size_t begin = 0;
  while (left && begin < rest.size()) {
    size_t next = begin;
    if (!is_white_space(take_code_point(rest, next))) break;
    begin = next;
  }
  if (begin > 0) text.is_first = false;
  text.text = std::string(rest.substr(begin));
}

std::function<void(NormalizedText&)> read_normalizer(const nlohmann::json& part, const TokenizerFile& file) {
  const auto type = part.at("type").get<std::string>();
  const std::pair<const char*, NormalForm> forms[] = {
      {"NFC", NormalForm::kNfc}, {"NFD", NormalForm::kNfd}, {"NFKC", NormalForm::kNfkc}, {"NFKD", NormalForm::kNfkd}};
  for (const auto& [name, form] : forms)
    if (type == name) return [form = form](NormalizedText& text) { normalize(text.text, form); };
  if (type == "Lowercase") return [](NormalizedText& text) { make_lowercase(text.text); };
  if (type == "Replace") return read_replacement(part, file);
  if (type == "Prepend")
    return [prefix = part.at("prepend").get<std::string>()](NormalizedText& text) {
      if (!text.text.empty()) text.text.insert(0, prefix);
    };
  if (type == "Strip")
    return [left = part.value("strip_left", true), right = part.value("strip_right", true)](NormalizedText& text) {
      strip(text, left, right);
    };
  file.refuse(fmt::format("the normalizer {}", type), part, kKnownNormalizers);
}

}  // namespace

std::function<void(NormalizedText&)> read_replacement(const nlohmann::json& part, const TokenizerFile& file) {
  const nlohmann::json& pattern = part.at("pattern");
  auto content = part.at("content").get<std::string>();
  if (pattern.contains("String")) {
    auto text = pattern["String"].get<std::string>();
    if (text.empty()) file.refuse("a Replace of an empty text", part, "one of at least a character");
    size_t first = 0;
    take_code_point(text, first);
    const bool keeps_first = first == text.size() && !content.empty();
    return [text = std::move(text), content = std::move(content), keeps_first, &file](NormalizedText& whole) {
      size_t found = whole.text.find(text);
      if (found == std::string::npos) return;
      if (found == 0 && !keeps_first) whole.is_first = false;
      std::string result;
      result.reserve(whole.text.size() + whole.text.size() / 4);
      size_t done = 0;
      for (; found != std::string::npos; found = whole.text.find(text, done)) {
        result.append(whole.text, done, found - done);
        result += content;
        done = found + text.size();
        check_size(result, whole, file);
      }
      result.append(whole.text, done);
      whole.text = std::move(result);
    };
  }
  if (!pattern.contains("Regex")) file.refuse("a Replace of another pattern", part, "String, Regex");
  auto expression = std::make_shared<const WordSplitter>(pattern["Regex"].get<std::string>(), file.path());
  return [expression = std::move(expression), content = std::move(content), &file](NormalizedText& whole) {
    std::string result;
    bool is_first = whole.is_first;
    size_t at = 0;
    expression->split(whole.text, [&](std::string_view match, bool is_match) {
      if (is_match && at == 0 && !match.empty()) {
        size_t first = 0;
        take_code_point(match, first);
        if (content.empty() || first != match.size()) is_first = false;
      }
      at += match.size();
      result += is_match ? std::string_view(content) : match;
      check_size(result, whole, file);
    });
    whole.is_first = is_first;
    whole.text = std::move(result);
  };
}

Normalizers::Normalizers(const nlohmann::json& part, const TokenizerFile& file) {
  for (const nlohmann::json* const element : file.elements(part, "normalizers"))
    steps_.push_back(read_normalizer(*element, file));
}

void Normalizers::apply(NormalizedText& text) const {
  for (const auto& step : steps_) step(text);
}

}  // namespace levin::data
