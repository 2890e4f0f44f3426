#include <levin/core/metrics/taken_back_updates.h>

#include <levin/core/metrics/auroc.h>
#include <levin/core/metrics/mean.h>

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>

namespace levin::metrics {
namespace {

double value_of(const Metric& metric) { return metric.compute().item<double>(); }

TEST(TakenBackUpdates, WhatWasAddedBeforeAndAfterCounts) {
  Mean mean;
  Mean other;
  Auroc area;  // whose states are rows
  other.update(100.0);
  mean.update(1.0);
  area.update(at::tensor({0.1, 0.9}), at::tensor({0, 1}));
  {
    const TakenBackUpdates scope;
    mean.update(5.0);
    mean.update(7.0);
    mean.merge_from(other);
    area.update(at::tensor({0.2, 0.3}), at::tensor({1, 0}));
    EXPECT_NE(value_of(mean), 1);
  }
  EXPECT_EQ(value_of(mean), 1);
  EXPECT_EQ(value_of(area), 1);
  mean.update(3.0);
  EXPECT_EQ(value_of(mean), 2);
  EXPECT_EQ(value_of(other), 100);
}

TEST(TakenBackUpdates, AResetToo) {
  Mean mean;
  mean.update(1.0);
  {
    const TakenBackUpdates scope;
    mean.reset();
    mean.update(5.0);
  }
  EXPECT_EQ(value_of(mean), 1);
}

TEST(TakenBackUpdates, TheInnermostScopeTakesBackItsOwn) {
  Mean mean;
  mean.update(1.0);
  std::optional<TakenBackUpdates> outer(std::in_place);
  mean.update(3.0);
  {
    const TakenBackUpdates inner;
    mean.update(50.0);
  }
  EXPECT_EQ(value_of(mean), 2);
  outer.reset();
  EXPECT_EQ(value_of(mean), 1);
}

TEST(TakenBackUpdates, AMetricMayBeGone) {
  const TakenBackUpdates scope;
  auto mean = std::make_unique<Mean>();
  mean->update(1.0);
  mean.reset();
}

}  // namespace
}  // namespace levin::metrics
