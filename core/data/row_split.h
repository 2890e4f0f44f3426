#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace levin::data {

/// Rows of a data set by what they are for, each part in ascending order.
struct RowSplit {
  std::vector<int64_t> train = {};
  std::vector<int64_t> validation = {};
  std::vector<int64_t> test = {};
};

/// Divides `size` rows in an order drawn from the seed: these fractions of them, rounded, for validation and tests.
RowSplit split_rows(int64_t size, double val_fraction, double test_fraction, uint64_t seed);

/// Divides rows with these classes into parts of the same sizes, each of which has the classes as the whole has them;
/// see stratified_split.
RowSplit split_rows_by_class(std::span<const int64_t> labels, double val_fraction, double test_fraction, uint64_t seed,
                             std::span<const std::string> class_names = {});

}  // namespace levin::data
