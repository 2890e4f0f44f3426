#pragma once

#include <levin/core/base/mutex.h>
#include <levin/core/data/dataset.h>
#include <levin/core/data/generator.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace levin::data {

/// Runs a function that reads examples; returns why it failed where that is the examples' fault: any std::exception but
/// those of Levin's own faults, of options and of memory that has run out, which go on.
std::optional<std::string> reason_of_failure(const std::function<void()>& read);

/// Examples of one pass that could not be read, of all its workers. In the place of one comes the next example of the
/// data set that can be read, as though the sampler had asked for it; so batches keep their sizes and positions, and
/// what they hold depends on the files alone.
class SkippedExamples {
 public:
  /// Most examples one after the other that may fail.
  static constexpr int64_t kMostInARow = 1000;

  /// `size`: of the data set; -1 where it has none.
  SkippedExamples(int64_t epoch, int64_t size) : epoch_(epoch), size_(size) {}

  /// Returns what to fetch when these are asked for, as far as is known. Throws levin::Error where too many in a row
  /// have failed.
  std::vector<int64_t> replaced(std::span<const int64_t> indices) const;
  /// Reads each example alone and notes those that fail; returns whether any did.
  bool note_unreadable(const Dataset& dataset, std::span<const int64_t> indices, const Generator& generator);
  /// Notes one of a stream, by its place.
  void note(const std::string& place, const std::string& reason);

  /// Prints how many there were and the first of them, unless there was none since the last report.
  void report();

 private:
  const int64_t epoch_;
  const int64_t size_;
  mutable Mutex mutex_;
  std::map<int64_t, std::string> reasons_ LEVIN_GUARDED_BY(mutex_);  ///< by index
  std::set<std::string> of_streams_ LEVIN_GUARDED_BY(mutex_);
  size_t reported_ LEVIN_GUARDED_BY(mutex_) = 0;
};

}  // namespace levin::data
