#pragma once

#include <levin/core/comm/collective.h>

#include <ATen/core/Tensor.h>

#include <bit>
#include <cstddef>
#include <cstdint>
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

/// Gathers any number of 64-bit words of each rank on all ranks: in one all-gather of a fixed size, and a second one
/// only when some rank has more words than fit. The lengths travel in the first, so ranks that disagree about what they
/// exchange neither hang nor read past the end.
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
  void begin() { words_.clear(); }
  void write(int64_t word) { words_.push_back(word); }
  void write(double value) { words_.push_back(std::bit_cast<int64_t>(value)); }
  void write_bytes(const void* bytes, size_t size);
  size_t size() const { return words_.size(); }
  void overwrite(size_t index, int64_t word) { words_[index] = word; }

  /// Exchanges the words. Parts are in rank order.
  void gather(Collective& collective, uint64_t names, int64_t count, bool is_complete);
  const std::vector<Part>& parts() const { return parts_; }
  /// Frees the memory of parts that did not fit.
  void end();

 private:
  std::vector<int64_t> words_;
  at::Tensor own_;                            ///< the first words of this rank
  at::Tensor first_;                          ///< those of all ranks
  std::vector<std::vector<int64_t>> joined_;  ///< all words, of ranks that had more than fit
  std::vector<Part> parts_;
};

}  // namespace levin::metrics::detail
