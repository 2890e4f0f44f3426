#include <levin/core/metrics/mean.h>

#include "metric_oracle.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace levin::metrics {
namespace {

TEST(Mean, EqualsTorchmetrics) {
  Mean mean;
  mean.update(oracle_input("predictions", {12, 3}), oracle_input("weights", {12, 1}));
  expect_oracle(mean.compute(), "mean");
}

TEST(Mean, WeighsNumbersAndTensors) {
  Mean mean;
  mean.update(2.0).update(4.0, 3).update(at::tensor({1L, 3L}), 2.0);
  EXPECT_DOUBLE_EQ(mean.compute().item<double>(), (2.0 + 12 + 8) / (1 + 3 + 4));
}

TEST(Mean, SumsInFloat64) {
  Mean mean;
  for (int i = 0; i < 100; ++i) mean.update(at::full({1000}, 0.1F));
  EXPECT_NEAR(mean.compute().item<double>(), 0.1F, 1e-12);
}

TEST(Mean, DoesNotHideNan) {
  EXPECT_TRUE(std::isnan(Mean().update(1.0).update(std::numeric_limits<double>::quiet_NaN()).compute().item<double>()));
}

TEST(Mean, RefusesWeightsThatDoNotFit) {
  expect_error(
      [] {
        Mean().update(at::rand({4, 3}), at::rand({4}));
      },
      {"[metrics] Mean", "[4, 3]", "[4]", "broadcast"});
}

}  // namespace
}  // namespace levin::metrics
