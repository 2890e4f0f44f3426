#include <levin/core/data/tokens/byte_pair_model.h>

#include <levin/core/data/tokens/byte_level.h>
#include <levin/core/data/tokens/unicode_text.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

namespace levin::data {

namespace {

constexpr std::string_view kMetaspace = "\xe2\x96\x81";  // U+2581

/// Returns the table's first place for a pair of tokens.
size_t place_of(uint64_t pair, int shift) { return static_cast<size_t>(pair * 0x9e3779b97f4a7c15 >> shift); }

std::pair<std::string, std::string> halves_of(const nlohmann::json& merge, const TokenizerFile& file) {
  if (merge.is_array() && merge.size() == 2) return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  const auto both = merge.get<std::string>();
  const size_t space = both.find(' ');
  if (space == std::string::npos) file.fail(fmt::format("is damaged: the merge '{}' has no two parts", both));
  return {both.substr(0, space), both.substr(space + 1)};
}

}  // namespace

BytePairModel::BytePairModel(const nlohmann::json& model, bool of_bytes, Vocabulary& vocabulary,
                             const TokenizerFile& file)
    : of_bytes_(of_bytes),
      takes_whole_words_(model.value("ignore_merges", false)),
      fuses_unknown_(model.value("fuse_unk", false)) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (model.contains(key) && !model[key].is_null() && model[key] != "") file.refuse(key, model[key], "none");
  if (model.contains("dropout") && !model["dropout"].is_null() && model["dropout"] != 0.0)
    file.refuse("dropout", model["dropout"], "none");
  for (const auto& [token, number] : model.at("vocab").items()) vocabulary.add(token, file.id(number, token));
  if (model.contains("unk_token") && !model["unk_token"].is_null()) {
    const auto found = vocabulary.ids.find(model["unk_token"].get<std::string>());
    if (found != vocabulary.ids.end()) unknown_ = found->second;
  }
  falls_back_to_bytes_ = !of_bytes_ && model.value("byte_fallback", false);
  read_symbols(of_bytes, vocabulary, file);
  read_merges(model.at("merges"), vocabulary, file);
}

void BytePairModel::read_symbols(bool of_bytes, const Vocabulary& vocabulary, const TokenizerFile& file) {
  const auto id_of = [&](const std::string& token) {
    const auto found = vocabulary.ids.find(token);
    return found == vocabulary.ids.end() ? -1 : found->second;
  };
  for (size_t byte = 0; byte < bytes_.size(); ++byte) {
    bytes_[byte] = id_of(of_bytes ? byte_characters()[byte] : fmt::format("<0x{:02X}>", byte));
    if (of_bytes && bytes_[byte] < 0)
      file.fail(
          fmt::format("has no token for the byte {}; hint: train it with initial_alphabet=ByteLevel.alphabet()", byte));
  }
  ascii_.fill(-1);
  for (const auto& [token, id] : vocabulary.ids) {
    if (takes_whole_words_ && !of_bytes) words_.emplace(token, id);
    if (takes_whole_words_ && of_bytes)
      if (auto bytes = bytes_of_characters(token)) words_.emplace(std::move(*bytes), id);
    if (of_bytes || token.empty()) continue;
    size_t end = 0;
    const uint32_t point = take_code_point(token, end);
    if (end != token.size()) continue;
    characters_.emplace(point, id);
    if (point < ascii_.size()) ascii_[point] = id;
  }
}

void BytePairModel::read_merges(const nlohmann::json& merges, const Vocabulary& vocabulary, const TokenizerFile& file) {
  const size_t size = std::bit_ceil(2 * merges.size() + 2);
  merges_.resize(size);
  shift_ = 64 - std::countr_zero(size);
  const auto id_of = [&](const std::string& token) {
    const auto found = vocabulary.ids.find(token);
    if (found == vocabulary.ids.end()) file.fail(fmt::format("is damaged: a merge has '{}', which is no token", token));
    return found->second;
  };
  bool joins_at_metaspace = false;
  int32_t rank = 0;
  for (const nlohmann::json& merge : merges) {
    const auto [left, right] = halves_of(merge, file);
    joins_at_metaspace |= !left.ends_with(kMetaspace) && right.starts_with(kMetaspace);
    const int32_t merged = id_of(left + right);
    const uint64_t pair = pair_of(id_of(left), id_of(right));
    size_t place = place_of(pair, shift_);
    while (merges_[place].pair != pair && merges_[place].pair != Merge().pair) place = (place + 1) & (size - 1);
    // As there, of two merges of one pair the last one holds.
    merges_[place] = {.pair = pair, .rank = rank++, .id = merged};
  }
  // Then no token has another character before U+2581, and words that begin with it have tokens of their own.
  size_t end = 0;
  cuts_at_metaspace_ = !of_bytes_ && !takes_whole_words_ && !joins_at_metaspace &&
                       characters_.contains(take_code_point(kMetaspace, end));
}

const BytePairModel::Merge* BytePairModel::find_merge(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  for (size_t place = place_of(pair, shift_);; place = (place + 1) & (merges_.size() - 1)) {
    const Merge& merge = merges_[place];
    if (merge.pair == pair) return &merge;
    if (merge.pair == Merge().pair) return nullptr;
  }
}

size_t BytePairModel::end_of_part(std::string_view word) const {
  if (!cuts_at_metaspace_) return word.size();
  size_t at = 0;
  while (word.substr(at).starts_with(kMetaspace)) at += kMetaspace.size();
  return std::min(word.find(kMetaspace, at), word.size());
}

void BytePairModel::append_symbols(std::string_view word, std::vector<int32_t>& ids) const {
  if (of_bytes_) {
    for (const char byte : word) ids.push_back(bytes_[static_cast<unsigned char>(byte)]);
    return;
  }
  bool has_unknown = false;  // not appended yet
  for (size_t at = 0; at < word.size();) {
    const size_t begin = at;
    const uint32_t point = take_code_point(word, at);
    int32_t id = -1;
    if (point < ascii_.size()) {
      id = ascii_[point];
    } else if (const auto found = characters_.find(point); found != characters_.end()) {
      id = found->second;
    }
    if (id >= 0) {
      if (std::exchange(has_unknown, false)) ids.push_back(*unknown_);
      ids.push_back(id);
      continue;
    }
    const auto id_of_byte = [&](char byte) { return bytes_[static_cast<unsigned char>(byte)]; };
    const std::string_view character = word.substr(begin, at - begin);
    if (falls_back_to_bytes_ &&
        std::all_of(character.begin(), character.end(), [&](char byte) { return id_of_byte(byte) >= 0; })) {
      for (const char byte : character) ids.push_back(id_of_byte(byte));
      continue;
    }
    if (!unknown_) continue;  // as there, it has no token
    if (has_unknown && !fuses_unknown_) ids.push_back(*unknown_);
    has_unknown = true;
  }
  if (has_unknown) ids.push_back(*unknown_);
}

void BytePairModel::merge_short(std::vector<int32_t>& ids, size_t begin) const {
  constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  struct Pair {
    int32_t rank = kNone;
    int32_t id = 0;
  };
  std::array<Pair, kLongestShort> pairs;  // of each token and the next one
  int32_t* const tokens = ids.data() + begin;
  size_t count = ids.size() - begin;
  const auto pair_at = [&](size_t i) {
    if (i + 1 >= count) return Pair();
    const Merge* const merge = find_merge(tokens[i], tokens[i + 1]);
    return merge == nullptr ? Pair() : Pair{merge->rank, merge->id};
  };
  for (size_t i = 0; i < count; ++i) pairs[i] = pair_at(i);
  while (true) {
    size_t best = 0;
    for (size_t i = 1; i < count; ++i)
      if (pairs[i].rank < pairs[best].rank) best = i;
    if (count == 0 || pairs[best].rank == kNone) break;
    tokens[best] = pairs[best].id;
    std::copy(tokens + best + 2, tokens + count, tokens + best + 1);
    std::copy(pairs.begin() + static_cast<std::ptrdiff_t>(best) + 2, pairs.begin() + static_cast<std::ptrdiff_t>(count),
              pairs.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    --count;
    pairs[best] = pair_at(best);
    if (best > 0) pairs[best - 1] = pair_at(best - 1);
  }
  ids.resize(begin + count);
}

void BytePairModel::merge_long(std::vector<int32_t>& ids, size_t begin) const {
  const auto count = static_cast<int32_t>(ids.size() - begin);
  std::vector<Symbol> symbols(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i)
    symbols[static_cast<size_t>(i)] = {ids[begin + static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1};
  struct Candidate {
    uint64_t order;  ///< rank, then place
    int32_t id;
    bool operator>(const Candidate& other) const { return order > other.order; }
  };
  std::vector<Candidate> candidates;
  const auto candidate_at = [&](int32_t place) -> std::optional<Candidate> {
    if (place < 0) return std::nullopt;
    const Symbol& symbol = symbols[static_cast<size_t>(place)];
    if (symbol.after < 0) return std::nullopt;
    const Merge* const merge = find_merge(symbol.id, symbols[static_cast<size_t>(symbol.after)].id);
    if (merge == nullptr) return std::nullopt;
    return Candidate{static_cast<uint64_t>(merge->rank) << 32 | static_cast<uint32_t>(place), merge->id};
  };
  for (int32_t i = 0; i < count; ++i)
    if (const auto candidate = candidate_at(i)) candidates.push_back(*candidate);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(), std::move(candidates));
  const auto consider = [&](int32_t place) {
    if (const auto candidate = candidate_at(place)) queue.push(*candidate);
  };
  constexpr int32_t kGone = -1;
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    const auto place = static_cast<int32_t>(static_cast<uint32_t>(top.order));
    Symbol& symbol = symbols[static_cast<size_t>(place)];
    if (symbol.id == kGone || symbol.after < 0) continue;
    Symbol& second = symbols[static_cast<size_t>(symbol.after)];
    const Merge* const merge = find_merge(symbol.id, second.id);
    if (merge == nullptr || merge->id != top.id) continue;  // it was merged otherwise
    symbol.id = top.id;
    second.id = kGone;
    symbol.after = second.after;
    if (symbol.after >= 0) symbols[static_cast<size_t>(symbol.after)].before = place;
    consider(symbol.before);
    consider(place);
  }
  ids.resize(begin);
  for (const Symbol& symbol : symbols)
    if (symbol.id != kGone) ids.push_back(symbol.id);
}

void BytePairModel::append_ids(std::string_view word, std::vector<int32_t>& ids) const {
  if (takes_whole_words_)
    if (const auto whole = words_.find(std::string(word)); whole != words_.end()) {
      ids.push_back(whole->second);
      return;
    }
  const size_t begin = ids.size();
  append_symbols(word, ids);
  if (ids.size() - begin <= kLongestShort)
    merge_short(ids, begin);
  else
    merge_long(ids, begin);
}

}  // namespace levin::data
