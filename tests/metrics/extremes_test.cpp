#include <levin/core/metrics/extremes.h>

#include <levin/core/metrics/mean.h>

#include "metric_oracle.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace levin::metrics {
namespace {

TEST(Extremes, AreOfAllValues) {
  Min least;
  Max largest;
  MinMax both;
  EXPECT_EQ(least.compute().item<double>(), INFINITY);
  EXPECT_EQ(largest.compute().item<double>(), -INFINITY);
  for (const auto& values : {at::tensor({3.0, -1.0}), at::tensor({2.0}), at::zeros({0}), at::tensor({5.0, 0.0, 1.0})}) {
    least.update(values);
    largest.update(values);
    both.update(values);
  }
  EXPECT_EQ(least.compute().item<double>(), -1);
  EXPECT_EQ(largest.compute().item<double>(), 5);
  EXPECT_TRUE(at::equal(both.compute(), at::tensor({-1.0, 5.0}, at::kDouble)));
  both.update(7.0);
  EXPECT_TRUE(at::equal(both.compute(), at::tensor({-1.0, 7.0}, at::kDouble)));
  least.update(-4.0);
  EXPECT_EQ(least.compute().item<double>(), -4);
}

TEST(Extremes, MergeAndContinue) {
  MinMax first;
  MinMax second;
  MinMax without_data;
  first.update(at::tensor({3.0, 4.0}));
  second.update(at::tensor({-3.0}));
  without_data.merge_from(first);
  without_data.merge_from(second);
  EXPECT_TRUE(at::equal(without_data.compute(), at::tensor({-3.0, 4.0}, at::kDouble)));
  MinMax loaded;
  loaded.load_state_dict(without_data.state_dict());
  EXPECT_TRUE(at::equal(loaded.update(9).compute(), at::tensor({-3.0, 9.0}, at::kDouble)));
  loaded.end_batch();
  loaded.update(at::tensor({0.0, 1.0}));
  EXPECT_TRUE(at::equal(loaded.compute_from(loaded.last_batch()), at::tensor({0.0, 1.0}, at::kDouble)));
  EXPECT_TRUE(at::equal(loaded.compute(), at::tensor({-3.0, 9.0}, at::kDouble)));
}

TEST(Extremes, OfAnotherMetricsValues) {
  MinMax of_epochs;
  for (const double value : {0.5, 0.8, 0.7}) {
    Mean mean;
    mean.update(value);
    of_epochs.update(mean);
  }
  EXPECT_TRUE(at::equal(of_epochs.compute(), at::tensor({0.5, 0.8}, at::kDouble)));
}

TEST(Extremes, ANanIsNotHidden) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(all_nan(Min().update(1).update(nan).update(2).compute()));
  EXPECT_TRUE(all_nan(MinMax().update(at::tensor({1.0, nan})).compute()));
}

}  // namespace
}  // namespace levin::metrics
