#include <levin/core/metrics/class_counts.h>

#include "metric_oracle.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

namespace levin::metrics::detail {
namespace {

// The way of devices on which nothing may look at the classes of a batch; the CPU throws earlier.
TEST(ClassCounts, KeepsSamplesOutsideTheClassesApart) {
  ClassPairs pairs{.predictions = at::tensor({0L, 1L, 2L, 9L, 1L}), .labels = at::tensor({0L, -100L, 3L, 1L, 2L})};
  set_outside_apart(pairs, 3);
  EXPECT_TRUE(at::equal(pairs.predictions, at::tensor({0L, 3L, 3L, 3L, 1L})));
  EXPECT_TRUE(at::equal(pairs.labels, at::tensor({0L, 3L, 3L, 3L, 2L})));
  at::Tensor counts = empty_class_counts(3);
  add_class_counts(counts, pairs);
  EXPECT_TRUE(at::equal(counts, at::tensor({1L, 0L, 0L, 3L, 1L, 1L, 0L, 3L, 1L, 0L, 1L, 3L}).reshape({3, 4})));
  expect_error([&] { read_class_counts("Recall", counts); }, {"[metrics] Recall", "3 such samples", "0 to 2"});
}

TEST(ClassCounts, CountsHitsPredictionsAndLabels) {
  at::Tensor counts = empty_class_counts(3);
  add_class_counts(counts, {.predictions = at::tensor({0L, 0L, 2L}), .labels = at::tensor({0L, 1L, 2L})});
  const ClassCounts read = read_class_counts("Recall", counts);
  EXPECT_TRUE(at::equal(read.hits, at::tensor({1.0, 0.0, 1.0})));
  EXPECT_TRUE(at::equal(read.predicted, at::tensor({2.0, 0.0, 1.0})));
  EXPECT_TRUE(at::equal(read.labelled, at::tensor({1.0, 1.0, 1.0})));
}

}  // namespace
}  // namespace levin::metrics::detail
