#include <levin/core/metrics/running_mean.h>

#include "metric_oracle.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

namespace levin::metrics {
namespace {

TEST(RunningMean, EqualsTorchmetrics) {
  const at::Tensor values = oracle_input("predictions", {36});
  RunningMean mean({.window = 3});
  EXPECT_TRUE(all_nan(mean.compute()));
  for (int64_t i = 0; i < 8; ++i) expect_oracle(mean.update(values[i]).compute(), fmt::format("running_mean/{}", i));
}

TEST(RunningMean, CountsEveryElementOfAnUpdate) {
  RunningMean mean({.window = 2});
  mean.update(9.0).update(at::tensor({1.0, 2.0, 3.0}));
  mean.update(at::tensor({6.0}));
  EXPECT_DOUBLE_EQ(mean.compute().item<double>(), 3);
  mean.update(at::zeros({0}));
  EXPECT_DOUBLE_EQ(mean.compute().item<double>(), 6);
}

TEST(RunningMean, OfRanksIsOfTheLastUpdatesOfAny) {
  RunningMean first({.window = 2});
  RunningMean second({.window = 2});
  for (const double value : {100.0, 1.0, 2.0}) first.update(value);
  for (const double value : {200.0, 6.0}) second.update(value);  // its data has ended
  RunningMean merged({.window = 2});
  merged.merge_from(second);
  merged.merge_from(first);
  EXPECT_DOUBLE_EQ(merged.compute().item<double>(), 3);
}

TEST(RunningMean, ContinuesFromItsStateAndStartsAfresh) {
  RunningMean straight({.window = 3});
  for (int i = 0; i < 5; ++i) straight.update(i);
  RunningMean resumed({.window = 3});
  resumed.load_state_dict(straight.state_dict());
  EXPECT_TRUE(at::equal(resumed.update(7).compute(), straight.update(7).compute()));
  straight.end_batch();
  straight.update(11);
  EXPECT_DOUBLE_EQ(straight.compute_from(straight.last_batch()).item<double>(), 11);
  EXPECT_DOUBLE_EQ(straight.compute().item<double>(), (4.0 + 7 + 11) / 3);
  straight.reset();
  EXPECT_TRUE(all_nan(straight.compute()));
  EXPECT_DOUBLE_EQ(straight.update(2).compute().item<double>(), 2);
}

TEST(RunningMean, ForgetsANan) {
  RunningMean mean({.window = 1});
  EXPECT_TRUE(all_nan(mean.update(std::numeric_limits<double>::quiet_NaN()).compute()));
  EXPECT_EQ(mean.update(1).compute().item<double>(), 1);
  expect_error([] { RunningMean({.window = 0}); }, {"RunningMean.window", "at least 1"});
}

}  // namespace
}  // namespace levin::metrics
