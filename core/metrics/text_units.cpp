#include <levin/core/metrics/text_units.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>

namespace levin::metrics::detail {
namespace {

constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";
/// Stands between units of a sequence, and in none.
constexpr char kBetweenUnits = '\0';

}  // namespace

TextUnits words_of(std::string_view text) {
  TextUnits words;
  size_t begin = text.find_first_not_of(kWhiteSpace);
  while (begin != std::string_view::npos) {
    const size_t end = text.find_first_of(kWhiteSpace, begin);
    words.push_back(text.substr(begin, end - begin));
    begin = text.find_first_not_of(kWhiteSpace, end);
  }
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
