#include <levin/core/metrics/rank_exchange.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/gather_on_first.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>

namespace levin::metrics::detail {
namespace {

constexpr int64_t kFirstWords = 256;
constexpr int64_t kHeaderWords = 4;  // names, count, is_complete, number of words
constexpr int64_t kInFirst = kFirstWords - kHeaderWords;

/// Gathers `words` of every rank, filled up with zeros to `size`, into `gathered`.
void gather_words(Collective& collective, std::span<const int64_t> words, int64_t size, at::Tensor& own,
                  at::Tensor& gathered) {
  const int64_t total = collective.world_size() * size;
  if (!gathered.defined() || gathered.numel() != total) {
    own = at::empty({size}, at::kLong);
    gathered = at::empty({total}, at::kLong);
  }
  int64_t* const target = own.mutable_data_ptr<int64_t>();
  std::copy(words.begin(), words.end(), target);
  std::fill(target + words.size(), target + size, 0);
  collective.all_gather(gathered, own)->wait();
}

std::string to_bytes(std::span<const int64_t> words) {
  return {reinterpret_cast<const char*>(words.data()), words.size_bytes()};
}

std::vector<int64_t> to_words(std::string_view bytes) {
  LEVIN_CHECK(bytes.size() % sizeof(int64_t) == 0, "a rank sent half a word");
  std::vector<int64_t> words(bytes.size() / sizeof(int64_t));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

}  // namespace

std::span<const int64_t> WordReader::take(size_t count) {
  LEVIN_CHECK(count <= words_.size(), "a rank sent too few words");
  const auto taken = words_.first(count);
  words_ = words_.subspan(count);
  return taken;
}

void WordWriter::write_bytes(const void* bytes, size_t size) {
  if (size == 0) return;
  const size_t begin = words_.size();
  words_.resize(begin + (size + sizeof(int64_t) - 1) / sizeof(int64_t), 0);
  std::memcpy(words_.data() + begin, bytes, size);
}

WordWriter& RankExchange::begin() {
  own_words_.clear();
  return own_words_;
}

void RankExchange::end() {
  if (joined_.empty()) return;
  parts_.clear();
  joined_ = {};
  own_words_ = {};
}

void RankExchange::exchange(Collective& collective, uint64_t names, int64_t count, bool is_complete,
                            const Combine& combine) {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  std::vector<int64_t>& words = own_words_.words();
  const std::array<int64_t, kHeaderWords> header{static_cast<int64_t>(names), count, static_cast<int64_t>(is_complete),
                                                 std::ssize(words)};
  words.insert(words.begin(), header.begin(), header.end());
  if (collective.world_size() <= kFewRanks || !combine_on_first(collective, combine)) gather(collective);
}

void RankExchange::add_part(std::span<const int64_t> words) {
  LEVIN_CHECK(words.size() >= kHeaderWords, "a rank sent too few words");
  parts_.push_back({static_cast<uint64_t>(words[0]), words[1], words[2] != 0, words.subspan(kHeaderWords)});
}

bool RankExchange::combine_on_first(Collective& collective, const Combine& combine) {
  std::string result;  // empty: there is none
  const auto of_ranks = gather_bytes_on_first(collective, to_bytes(own_words_.words()));
  if (collective.rank() == 0) {
    parts_.clear();
    joined_.clear();
    for (const std::string& bytes : of_ranks) joined_.push_back(to_words(bytes));
    for (const auto& words : joined_) add_part(words);
    WordWriter together;
    const std::span<const int64_t> header(joined_.front().data(), kHeaderWords);
    for (const int64_t word : header) together.write(word);
    if (combine(together)) result = to_bytes(together.words());
  }
  result = collective.broadcast_bytes(result, 0);
  parts_.clear();
  joined_.clear();
  if (result.empty()) return false;
  joined_.push_back(to_words(result));
  add_part(joined_.front());
  return true;
}

void RankExchange::gather(Collective& collective) {
  const auto world_size = static_cast<size_t>(collective.world_size());
  const std::span<const int64_t> all(own_words_.words());
  const auto in_first = all.first(std::min(all.size(), static_cast<size_t>(kFirstWords)));
  gather_words(collective, in_first, kFirstWords, own_, first_);

  const int64_t* const first = first_.const_data_ptr<int64_t>();
  int64_t longest = 0;
  for (size_t rank = 0; rank < world_size; ++rank)
    longest = std::max(longest, first[rank * kFirstWords + kHeaderWords - 1]);
  const int64_t beyond = std::max<int64_t>(longest - kInFirst, 0);
  at::Tensor rest_own;
  at::Tensor rest;
  if (beyond > 0) {
    gather_words(collective, all.subspan(in_first.size()), beyond, rest_own, rest);
    joined_.resize(world_size);
  }

  parts_.clear();
  for (size_t rank = 0; rank < world_size; ++rank) {
    const int64_t* const header = first + rank * kFirstWords;
    const int64_t words = header[kHeaderWords - 1];
    std::span<const int64_t> said(header, static_cast<size_t>(kHeaderWords + std::min(words, kInFirst)));
    if (words > kInFirst) {
      const int64_t* const of_rank = rest.const_data_ptr<int64_t>() + static_cast<int64_t>(rank) * beyond;
      joined_[rank].assign(said.begin(), said.end());
      joined_[rank].insert(joined_[rank].end(), of_rank, of_rank + (words - kInFirst));
      said = joined_[rank];
    }
    add_part(said);
  }
}

}  // namespace levin::metrics::detail
