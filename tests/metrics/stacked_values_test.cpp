#include <levin/core/metrics/stacked_values.h>

#include "metric_oracle.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

namespace levin::metrics {
namespace {

StackedValues median() {
  return StackedValues({.reduce = [](const at::Tensor& values) { return values.median(); }});
}

TEST(StackedValues, GivesWhatTheFunctionMakesOfAllUpdates) {
  StackedValues metric = median();
  EXPECT_TRUE(all_nan(metric.compute()));
  metric.update(5.0).update(at::tensor({1.0F, 9.0F}).reshape({1, 2}).requires_grad_()).update(at::empty({0}));
  EXPECT_DOUBLE_EQ(metric.compute().item<double>(), 5);
  EXPECT_FALSE(metric.compute().requires_grad());
  metric.update(2.0).update(1.5);
  EXPECT_DOUBLE_EQ(metric.compute().item<double>(), 2);
  metric.reset();
  EXPECT_TRUE(all_nan(metric.compute()));
  EXPECT_DOUBLE_EQ(metric.update(-1.0).compute().item<double>(), -1);
}

TEST(StackedValues, KeepsTheOrderOfUpdatesAndOfRanks) {
  const auto last = [] {
    return StackedValues({.reduce = [](const at::Tensor& values) { return values[-1] - values[0]; }});
  };
  StackedValues first = last();
  StackedValues second = last();
  first.update(1.0).update(2.0);
  second.update(30.0).update(10.0);
  first.merge_from(second);
  EXPECT_DOUBLE_EQ(first.compute().item<double>(), 9);
  StackedValues resumed = last();
  resumed.load_state_dict(first.state_dict());
  EXPECT_DOUBLE_EQ(resumed.update(4.0).compute().item<double>(), 3);
}

TEST(StackedValues, NeedsAFunction) {
  expect_error([] { StackedValues({}); }, {"StackedValues: needs a function, `reduce`"});
}

}  // namespace
}  // namespace levin::metrics
