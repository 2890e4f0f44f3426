#include <levin/core/data/row_split.h>

#include <levin/core/data/random_split.h>
#include <levin/core/data/sampler.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace levin::data {

namespace {

struct HeldOut {
  int64_t tests = 0;
  int64_t validations = 0;
};

HeldOut held_out(int64_t size, double val_fraction, double test_fraction) {
  const auto rows = static_cast<double>(size);
  const auto tests = static_cast<int64_t>(std::nearbyint(rows * test_fraction));
  return {.tests = tests,
          .validations = std::min(static_cast<int64_t>(std::nearbyint(rows * val_fraction)), size - tests)};
}

}  // namespace

RowSplit split_rows(int64_t size, double val_fraction, double test_fraction, uint64_t seed) {
  const std::vector<int64_t> order = RandomSampler().order(size, seed, 0);
  const auto [tests, validations] = held_out(size, val_fraction, test_fraction);
  const auto first_validation = order.begin() + tests;
  const auto first_training = first_validation + validations;
  RowSplit parts{.train = {first_training, order.end()},
                 .validation = {first_validation, first_training},
                 .test = {order.begin(), first_validation}};
  for (auto* part : {&parts.train, &parts.validation, &parts.test}) std::sort(part->begin(), part->end());
  return parts;
}

RowSplit split_rows_by_class(std::span<const int64_t> labels, double val_fraction, double test_fraction, uint64_t seed,
                             std::span<const std::string> class_names) {
  const auto size = std::ssize(labels);
  const auto [tests, validations] = held_out(size, val_fraction, test_fraction);
  RowSplit split;
  std::vector<int64_t> lengths;
  std::vector<std::vector<int64_t>*> parts;
  const auto add = [&](int64_t length, std::vector<int64_t>& part) {
    if (length == 0) return;
    lengths.push_back(length);
    parts.push_back(&part);
  };
  add(size - tests - validations, split.train);
  add(validations, split.validation);
  add(tests, split.test);
  SplitIndices indices = stratified_split(labels, SplitLengths(std::move(lengths)), seed, class_names);
  for (size_t i = 0; i < parts.size(); ++i) *parts[i] = std::move(indices[i]);
  return split;
}

}  // namespace levin::data
