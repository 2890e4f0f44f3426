#pragma once

#include <levin/core/comm/collective.h>

#include <ATen/core/Tensor.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace levin::metrics::detail {

/// Reader of the words that a RankExchange carried.
class WordReader {
 public:
  explicit WordReader(std::span<const int64_t> words) : words_(words) {}

  int64_t read() { return take(1).front(); }
  double read_double() { return std::bit_cast<double>(read()); }
  std::span<const int64_t> take(size_t count);

 private:
  std::span<const int64_t> words_;
};

/// Writer of words, whose memory is used again.
class WordWriter {
 public:
  void clear() { words_.clear(); }
  void write(int64_t word) { words_.push_back(word); }
  void write(double value) { words_.push_back(std::bit_cast<int64_t>(value)); }
  void write_bytes(const void* bytes, size_t size);
  size_t size() const { return words_.size(); }
  void overwrite(size_t index, int64_t word) { words_[index] = word; }
  std::vector<int64_t>& words() { return words_; }

 private:
  std::vector<int64_t> words_;
};

/// Tells any number of 64-bit words of each rank to all ranks. Of up to kFewRanks: in one all-gather of a fixed size,
/// and a second one only when some rank has more words than fit. The lengths travel in the first, so ranks that
/// disagree about what they exchange neither hang nor read past the end. Of more ranks the words go to rank 0, which
/// combines them, and all get the result: what a rank receives does not grow with their number. Where rank 0 cannot
/// combine them, each gets those of all.
class RankExchange {
 public:
  /// Words of one rank.
  struct Part {
    uint64_t names;    ///< hash of the names that the words describe
    int64_t count;     ///< number of names
    bool is_complete;  ///< false: this rank may not know all names
    std::span<const int64_t> words;
  };

  /// Begins this rank's words.
  WordWriter& begin();

  /// Writes the words of one rank that has seen what those of parts() have, and returns true; false: it cannot.
  using Combine = std::function<bool(WordWriter& together)>;
  /// Exchanges the words. `combine` may be called, on rank 0.
  void exchange(Collective& collective, uint64_t names, int64_t count, bool is_complete, const Combine& combine);
  /// The ranks' words, in rank order; or one part with those that rank 0 has combined.
  const std::vector<Part>& parts() const { return parts_; }
  /// Frees the memory of parts that did not fit.
  void end();

 private:
  void gather(Collective& collective);
  bool combine_on_first(Collective& collective, const Combine& combine);
  /// Adds a part that begins with its header.
  void add_part(std::span<const int64_t> words);

  WordWriter own_words_;
  at::Tensor own_;                            ///< the first words of this rank
  at::Tensor first_;                          ///< those of all ranks
  std::vector<std::vector<int64_t>> joined_;  ///< all words of a rank, where they are not in `first_`
  std::vector<Part> parts_;
};

}  // namespace levin::metrics::detail
