#pragma once

#include <cstdint>
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

}  // namespace levin::data
