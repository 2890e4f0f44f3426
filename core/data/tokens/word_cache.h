#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace levin::data {

/// The ids of words that came before: most of a text are few words. Bounded.
class WordCache {
 public:
  /// Returns the ids of a word, which are valid until one is added; std::nullopt: it is not known.
  std::optional<std::span<const int32_t>> find(std::string_view word);
  /// Adds the word that was looked for last, unless it is long or there are many.
  void add(std::string_view word, std::span<const int32_t> ids);

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t word = 0;
    uint32_t length = 0;  ///< 0: free
    uint32_t ids = 0;
    uint32_t count = 0;
  };
  size_t place_of(std::string_view word, uint64_t hash) const;

  std::vector<Slot> slots_ = std::vector<Slot>(1024);
  size_t words_ = 0;
  uint64_t hash_ = 0;  ///< of the word that was looked for last
  std::string texts_;
  std::vector<int32_t> ids_;
};

}  // namespace levin::data
