#include <levin/core/metrics/text_units.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace levin::metrics::detail {
namespace {

/// Unicode's white space in UTF-8, and the separators U+001C to U+001F, as Python's `str.split` has it.
constexpr std::array<std::string_view, 29> kWhiteSpace = {" ",
                                                          "\t",
                                                          "\n",
                                                          "\v",
                                                          "\f",
                                                          "\r",
                                                          "\x1c",
                                                          "\x1d",
                                                          "\x1e",
                                                          "\x1f",
                                                          "\xc2\x85",
                                                          "\xc2\xa0",
                                                          "\xe1\x9a\x80",
                                                          "\xe2\x80\x80",
                                                          "\xe2\x80\x81",
                                                          "\xe2\x80\x82",
                                                          "\xe2\x80\x83",
                                                          "\xe2\x80\x84",
                                                          "\xe2\x80\x85",
                                                          "\xe2\x80\x86",
                                                          "\xe2\x80\x87",
                                                          "\xe2\x80\x88",
                                                          "\xe2\x80\x89",
                                                          "\xe2\x80\x8a",
                                                          "\xe2\x80\xa8",
                                                          "\xe2\x80\xa9",
                                                          "\xe2\x80\xaf",
                                                          "\xe2\x81\x9f",
                                                          "\xe3\x80\x80"};
/// Stands between units of a sequence, and in none.
constexpr char kBetweenUnits = '\0';

/// Returns the bytes of the white space that begins at `at`; 0 where there is none.
size_t white_space_at(std::string_view text, size_t at) {
  const auto begins = [&](std::string_view space) { return text.substr(at).starts_with(space); };
  const auto* const found = std::find_if(kWhiteSpace.begin(), kWhiteSpace.end(), begins);
  return found == kWhiteSpace.end() ? 0 : found->size();
}

}  // namespace

TextUnits words_of(std::string_view text) {
  TextUnits words;
  size_t begin = 0;  // of the word that is being read
  for (size_t at = 0; at < text.size();) {
    const size_t space = white_space_at(text, at);
    if (space > 0 && at > begin) words.push_back(text.substr(begin, at - begin));
    at += std::max<size_t>(space, 1);
    if (space > 0) begin = at;
  }
  if (begin < text.size()) words.push_back(text.substr(begin));
  return words;
}

TextUnits characters_of(std::string_view text) {
  const auto continues = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; };
  TextUnits characters;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin + 1;
    while (end < text.size() && continues(text[end])) ++end;
    characters.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return characters;
}

NGrams::NGrams(const TextUnits& units, int64_t longest) : by_length_(static_cast<size_t>(longest)) {
  for (size_t begin = 0; begin < units.size(); ++begin) {
    std::string sequence;
    const size_t end = std::min(units.size(), begin + by_length_.size());
    for (size_t i = begin; i < end; ++i) {
      sequence.append(units[i]).push_back(kBetweenUnits);
      ++by_length_[i - begin][sequence];
    }
  }
}

int64_t NGrams::count(int64_t length) const {
  int64_t sum = 0;
  for (const auto& [sequence, times] : by_length_[static_cast<size_t>(length - 1)]) sum += times;
  return sum;
}

int64_t NGrams::matches(const NGrams& other, int64_t length) const {
  const auto& theirs = other.by_length_[static_cast<size_t>(length - 1)];
  int64_t sum = 0;
  for (const auto& [sequence, times] : by_length_[static_cast<size_t>(length - 1)])
    if (const auto found = theirs.find(sequence); found != theirs.end()) sum += std::min(times, found->second);
  return sum;
}

void NGrams::merge_largest(const NGrams& other) {
  for (size_t i = 0; i < by_length_.size(); ++i)
    for (const auto& [sequence, times] : other.by_length_[i]) {
      int64_t& own = by_length_[i][sequence];
      own = std::max(own, times);
    }
}

void check_text_pairs(std::string_view metric, size_t predictions, size_t targets) {
  if (predictions != targets)
    throw Error("metrics", fmt::format("{}: each prediction needs its target; got {} predictions and {} targets; "
                                       "valid: as many of one as of the other",
                                       metric, predictions, targets));
}

std::vector<std::vector<std::string>> as_references(const std::vector<std::string>& targets) {
  std::vector<std::vector<std::string>> references;
  for (const auto& target : targets) references.push_back({target});
  return references;
}

}  // namespace levin::metrics::detail
