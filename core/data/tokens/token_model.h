#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace levin::data {

/// Makes tokens of words. Thread-safe.
class TokenModel {
 public:
  virtual ~TokenModel() = default;
  /// Appends the ids of a word, which is not empty.
  virtual void append_ids(std::string_view word, std::vector<int32_t>& ids) const = 0;
  /// Returns where the first part of a word ends whose tokens are its own, whatever follows; the whole word where that
  /// is not known.
  virtual size_t end_of_part(std::string_view word) const { return word.size(); }
};

}  // namespace levin::data
