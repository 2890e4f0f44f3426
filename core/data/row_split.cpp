#include <levin/core/data/row_split.h>

#include <levin/core/data/sampler.h>

#include <algorithm>
#include <cmath>

namespace levin::data {

RowSplit split_rows(int64_t size, double val_fraction, double test_fraction, uint64_t seed) {
  const std::vector<int64_t> order = RandomSampler().order(size, seed, 0);
  const auto rows = static_cast<double>(size);
  const auto tests = static_cast<std::ptrdiff_t>(std::nearbyint(rows * test_fraction));
  const auto validations =
      std::min(static_cast<std::ptrdiff_t>(std::nearbyint(rows * val_fraction)), std::ssize(order) - tests);
  const auto first_validation = order.begin() + tests;
  const auto first_training = first_validation + validations;
  RowSplit parts{.train = {first_training, order.end()},
                 .validation = {first_validation, first_training},
                 .test = {order.begin(), first_validation}};
  for (auto* part : {&parts.train, &parts.validation, &parts.test}) std::sort(part->begin(), part->end());
  return parts;
}

}  // namespace levin::data
