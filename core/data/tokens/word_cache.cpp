#include <levin/core/data/tokens/word_cache.h>

#include <xxhash.h>

#include <cstring>

namespace levin::data {

size_t WordCache::place_of(std::string_view word, uint64_t hash) const {
  size_t place = hash & (slots_.size() - 1);
  for (;; place = (place + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[place];
    if (slot.length == 0 || (slot.hash == hash && slot.length == word.size() &&
                             std::memcmp(texts_.data() + slot.word, word.data(), word.size()) == 0))
      return place;
  }
}

std::optional<std::span<const int32_t>> WordCache::find(std::string_view word) {
  hash_ = XXH3_64bits(word.data(), word.size());
  const Slot& slot = slots_[place_of(word, hash_)];
  if (slot.length == 0) return std::nullopt;
  return std::span(ids_).subspan(slot.ids, slot.count);
}

void WordCache::add(std::string_view word, std::span<const int32_t> ids) {
  constexpr size_t kMostWords = size_t{1} << 16;
  constexpr size_t kLongest = 64;
  if (word.size() > kLongest || words_ >= kMostWords) return;
  if (2 * (words_ + 1) > slots_.size()) {
    std::vector<Slot> before(2 * slots_.size());
    before.swap(slots_);
    for (const Slot& slot : before)
      if (slot.length > 0) slots_[place_of(std::string_view(texts_).substr(slot.word, slot.length), slot.hash)] = slot;
  }
  slots_[place_of(word, hash_)] = {.hash = hash_,
                                   .word = static_cast<uint32_t>(texts_.size()),
                                   .length = static_cast<uint32_t>(word.size()),
                                   .ids = static_cast<uint32_t>(ids_.size()),
                                   .count = static_cast<uint32_t>(ids.size())};
  ++words_;
  texts_ += word;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
}

}  // namespace levin::data
