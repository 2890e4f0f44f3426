#pragma once

#include <levin/core/base/state.h>
#include <levin/core/data/batch.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace levin::data {

/// Rows of named tensors on the CPU, in memory or in files that are gone with them.
class StepRows {
 public:
  /// `folder`: where the files are; empty: memory.
  StepRows(int64_t count, std::string folder) : count_(count), folder_(std::move(folder)) {}

  bool empty() const { return columns_.empty(); }
  const std::vector<Batch::Item>& columns() const { return columns_; }

  /// Makes the rows for steps like these, whose first dimension counts them. Throws levin::Error where there is no room
  /// for them on the disk.
  void allocate(const Batch& steps);
  /// Throws levin::Error unless these steps are like those of `allocate`, in names, types and shapes.
  void check(const Batch& steps) const;
  /// Copies step `from` of checked steps, which are contiguous, into a row.
  void write(int64_t row, const Batch& steps, int64_t from);
  /// Returns copies of rows of a column: [rows, ...].
  at::Tensor gather(size_t column, std::span<const int64_t> rows) const;
  /// Copies row `row` of a column to `target`, which has room for it.
  void read(size_t column, int64_t row, void* target) const;

  /// Returns a copy of `count` rows from `first` on, behind the last one the first; in memory or files as these are.
  Batch copy(int64_t first, int64_t count) const;
  /// Makes the rows for the steps of a copy, as to_state gave them, and puts these in from row `first` on. Steps that
  /// are in files are read into the rows and take no memory of their own. Throws levin::Error where these are not
  /// `held` steps.
  void restore(const State& steps, int64_t first, int64_t held);

 private:
  at::Tensor make(at::IntArrayRef row_sizes, int64_t count, at::ScalarType type) const;

  int64_t count_;
  std::string folder_;
  std::vector<Batch::Item> columns_;  ///< [count, ...]
};

}  // namespace levin::data
