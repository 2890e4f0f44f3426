#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

/// What metrics of texts compare. All of it points into the text.
namespace levin::metrics::detail {

using TextUnits = std::vector<std::string_view>;

/// Words between white space.
TextUnits words_of(std::string_view text);
/// Characters of UTF-8.
TextUnits characters_of(std::string_view text);

/// Sequences of units with how often each occurs, by length.
class NGrams {
 public:
  /// Counts those of 1 to `longest` units.
  NGrams(const TextUnits& units, int64_t longest);

  /// Number of sequences of a length, repeated ones counted again.
  int64_t count(int64_t length) const;
  /// Number of them that the other has too, each at most as often as the other has it.
  int64_t matches(const NGrams& other, int64_t length) const;
  /// Raises each count to the other's.
  void merge_largest(const NGrams& other);

 private:
  std::vector<std::map<std::string, int64_t, std::less<>>> by_length_;
};

/// Throws levin::Error unless there are as many targets as predictions.
void check_text_pairs(std::string_view metric, size_t predictions, size_t targets);
/// One reference for each prediction as a list of one.
std::vector<std::vector<std::string>> as_references(const std::vector<std::string>& targets);

}  // namespace levin::metrics::detail
