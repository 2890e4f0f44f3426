#include <levin/core/metrics/metric_tracker.h>

#include <levin/core/metrics/confusion_matrix.h>
#include <levin/core/metrics/mean.h>

#include "metric_oracle.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <limits>

namespace levin::metrics {
namespace {

TEST(MetricTracker, KeepsTheValueOfEachEpoch) {
  MetricTracker<Mean> tracker{Mean(), /*maximize=*/false};
  for (const double epoch : {3.0, 1.0, 2.0}) {
    tracker.metric().update(at::tensor({epoch, epoch}));
    tracker.increment();
  }
  EXPECT_TRUE(at::equal(tracker.values(), at::tensor({3.0, 1.0, 2.0}, at::kDouble)));
  EXPECT_EQ(tracker.best().value, 1);
  EXPECT_EQ(tracker.best().index, 1);
  EXPECT_TRUE(all_nan(tracker.metric().compute())) << "afresh";

  tracker.metric().update(8.0);
  MetricTracker<Mean> resumed{Mean(), /*maximize=*/false};
  resumed.add(99);
  resumed.load_state_dict(tracker.state_dict());
  resumed.increment();
  EXPECT_TRUE(at::equal(resumed.values(), at::tensor({3.0, 1.0, 2.0, 8.0}, at::kDouble)));
}

TEST(MetricTracker, TheBestIsTheFirstOfEqualsAndNoNan) {
  ValueTracker tracker;
  tracker.add(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(tracker.best().value));
  tracker.add(2);
  tracker.add(5);
  tracker.add(5);
  EXPECT_EQ(tracker.best().index, 2);
}

TEST(MetricTracker, KeepsValuesOfAnyShape) {
  MetricTracker<ConfusionMatrix> tracker(ConfusionMatrix({.num_classes = 2}));
  tracker.increment();
  tracker.metric().update(at::tensor({0L, 1L}), at::tensor({1L, 1L}));
  tracker.increment();
  EXPECT_EQ(tracker.values().sizes(), (std::vector<int64_t>{2, 2, 2}));
  expect_error([&] { tracker.best(); }, {"several elements have no best", "[2, 2]"});
  expect_error([&] { tracker.add(1); }, {"another shape"});
  expect_error([] { ValueTracker().best(); }, {"no value yet"});
}

}  // namespace
}  // namespace levin::metrics
