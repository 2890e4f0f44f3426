#include <levin/core/metrics/mean_squared_error.h>

#include "metric_oracle.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

namespace levin::metrics {
namespace {

TEST(MeanSquaredError, EqualsTorchmetrics) {
  const at::Tensor predictions = oracle_input("predictions", {12, 3});
  const at::Tensor targets = oracle_input("targets", {12, 3});
  expect_oracle(MeanSquaredError().update(predictions, targets).compute(), "mse");
  expect_oracle(MeanSquaredError({.squared = false}).update(predictions, targets).compute(), "rmse");
}

TEST(MeanSquaredError, TakesIntegersAndHalfPrecision) {
  EXPECT_EQ(MeanSquaredError().update(at::tensor({1L, 5L}), at::tensor({2.0F, 5.0F})).compute().item<double>(), 0.5);
  const at::Tensor large = at::tensor({300.0F, 0.0F}).to(at::kHalf);  // whose square is no float16
  EXPECT_EQ(MeanSquaredError().update(large, large - large).compute().item<double>(), 45000);
}

TEST(MeanSquaredError, BroadcastsNothing) {
  expect_error(
      [] {
        MeanSquaredError().update(at::rand({4, 1}), at::rand({4}));
      },
      {"[metrics] MeanSquaredError", "[4, 1]", "targets [4]", "squeeze(1)"});
}

}  // namespace
}  // namespace levin::metrics
