#include <levin/callbacks/batch_size_search.h>

#include <algorithm>
#include <numeric>

namespace levin {

std::optional<int64_t> BatchSizeSearch::next() const {
  if (trials_ >= options_.max_trials) return std::nullopt;
  if (failed_ == 0) {
    const int64_t size = std::min(largest_ == 0 ? options_.first : 2 * largest_, options_.limit);
    return size > largest_ ? std::optional(size) : std::nullopt;
  }
  if (largest_ == 0) return failed_ > 1 ? std::optional(failed_ / 2) : std::nullopt;
  if (!options_.bisect || failed_ - largest_ <= 1) return std::nullopt;
  return std::midpoint(largest_, failed_);
}

void BatchSizeSearch::fits(int64_t size) {
  ++trials_;
  largest_ = std::max(largest_, size);
}

void BatchSizeSearch::runs_out_of_memory(int64_t size) {
  ++trials_;
  failed_ = size;
}

void BatchSizeSearch::runs_out_of_data(int64_t size) {
  ++trials_;
  options_.limit = largest_ > 0 ? largest_ : size / 2;
}

std::optional<int64_t> BatchSizeSearch::result() const {
  if (largest_ == 0) return std::nullopt;
  if (!options_.bisect || failed_ == 0) return largest_;
  return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(largest_) * (1 - options_.margin)));
}

}  // namespace levin
