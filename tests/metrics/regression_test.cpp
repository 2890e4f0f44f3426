#include <levin/core/metrics/mean_squared_error.h>
#include <levin/core/metrics/regression.h>

#include "metric_oracle.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace levin::metrics {
namespace {

struct Pairs {
  at::Tensor targets = oracle_input("targets", {12, 3}).to(at::kDouble);
  at::Tensor predictions = oracle_input("predictions", {12, 3}).to(at::kDouble) + 0.7 * targets;
};

/// Whole, in uneven batches, and merged as of two ranks.
template <class M>
void expect_everywhere(const std::string& name, const at::Tensor& predictions, const at::Tensor& targets) {
  SCOPED_TRACE(name);
  expect_oracle(M().update(predictions, targets).compute(), name);
  M first;
  M second;
  first.update(predictions.narrow(0, 0, 5), targets.narrow(0, 0, 5));
  second.update(predictions.narrow(0, 5, 1), targets.narrow(0, 5, 1));
  second.update(predictions.narrow(0, 6, 6), targets.narrow(0, 6, 6));
  first.merge_from(second);
  expect_oracle(first.compute(), name);
}

TEST(Regression, EqualsTorchmetrics) {
  const auto [targets, predictions] = Pairs();
  expect_everywhere<MeanAbsoluteError>("mae", predictions, targets);
  expect_everywhere<MeanAbsolutePercentageError>("mape", predictions, targets);
  expect_everywhere<R2Score>("r2", predictions, targets);
  expect_everywhere<ExplainedVariance>("explained_variance", predictions, targets);
  expect_everywhere<PearsonCorrelation>("pearson", predictions, targets);
  expect_everywhere<SpearmanCorrelation>("spearman", predictions.mul(2).round(), targets.mul(2).round());
  expect_everywhere<CosineSimilarity>("cosine", predictions, targets);
}

TEST(Regression, NothingSeenIsNaN) {
  EXPECT_TRUE(all_nan(MeanAbsoluteError().compute()));
  EXPECT_TRUE(all_nan(MeanAbsolutePercentageError().compute()));
  EXPECT_TRUE(all_nan(R2Score().compute()));
  EXPECT_TRUE(all_nan(ExplainedVariance().compute()));
  EXPECT_TRUE(all_nan(PearsonCorrelation().compute()));
  EXPECT_TRUE(all_nan(SpearmanCorrelation().compute()));
  EXPECT_TRUE(all_nan(CosineSimilarity().compute()));
}

TEST(Regression, DegenerateTargetsHaveNoCorrelation) {
  const at::Tensor rising = at::arange(4, at::kDouble);
  EXPECT_TRUE(all_nan(PearsonCorrelation().update(rising, at::ones({4})).compute()));
  EXPECT_TRUE(all_nan(SpearmanCorrelation().update(rising, at::ones({4})).compute()));
  EXPECT_TRUE(all_nan(R2Score().update(rising.narrow(0, 0, 1), rising.narrow(0, 1, 1)).compute()));
  EXPECT_DOUBLE_EQ(SpearmanCorrelation().update(rising, rising.exp()).compute().item<double>(), 1);
  EXPECT_DOUBLE_EQ(PearsonCorrelation().update(rising, -rising).compute().item<double>(), -1);
}

TEST(Regression, NanAmongTheValuesIsNan) {
  const at::Tensor rising = at::arange(4, at::kDouble);
  const at::Tensor with_nan = rising.masked_fill(rising == 2, std::numeric_limits<double>::quiet_NaN());
  const auto expect_nan = [&](const auto& make) {
    EXPECT_TRUE(all_nan(make().update(with_nan, rising).compute()));
    EXPECT_TRUE(all_nan(make().update(rising, with_nan).compute()));
  };
  expect_nan([] { return MeanSquaredError({}); });
  expect_nan([] { return MeanAbsoluteError(); });
  expect_nan([] { return MeanAbsolutePercentageError(); });
  expect_nan([] { return R2Score(); });
  expect_nan([] { return ExplainedVariance(); });
  expect_nan([] { return PearsonCorrelation(); });
  expect_nan([] { return SpearmanCorrelation(); });
}

/// Whatever is infinite, where, and in which batch.
TEST(Regression, InfinityAmongTheValues) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const at::Tensor rising = at::arange(6, at::kDouble);
  const auto with = [&](double value, int64_t place) { return rising.masked_fill(rising == place, value); };
  const auto value_of = [](auto&& metric, const at::Tensor& predictions, const at::Tensor& targets, bool in_batches) {
    for (int64_t i = 0; in_batches && i < 6; i += 2)
      metric.update(predictions.narrow(0, i, 2), targets.narrow(0, i, 2));
    if (!in_batches) metric.update(predictions, targets);
    return metric.compute().template item<double>();
  };
  for (const double infinity : {kInfinity, -kInfinity})
    for (const int64_t place : {0, 3, 5})
      for (const bool in_batches : {false, true}) {
        SCOPED_TRACE(testing::Message() << infinity << " at " << place << ", in batches: " << in_batches);
        const at::Tensor one = with(infinity, place);
        const at::Tensor opposite = with(-infinity, place);
        for (const auto& [p, t] : {std::pair(one, rising), std::pair(rising, one), std::pair(opposite, one)}) {
          EXPECT_EQ(value_of(MeanSquaredError(), p, t, in_batches), kInfinity);
          EXPECT_EQ(value_of(MeanSquaredError({.squared = false}), p, t, in_batches), kInfinity);
          EXPECT_EQ(value_of(MeanAbsoluteError(), p, t, in_batches), kInfinity);
        }
        EXPECT_EQ(value_of(MeanAbsolutePercentageError(), one, rising, in_batches), kInfinity);
        EXPECT_TRUE(std::isnan(value_of(MeanAbsolutePercentageError(), rising, one, in_batches)));
        EXPECT_TRUE(std::isnan(value_of(MeanSquaredError(), one, one, in_batches)));
        for (const auto& [p, t] : {std::pair(one, rising), std::pair(rising, one), std::pair(one, one),
                                   std::pair(one, at::ones({6}, at::kDouble))}) {
          EXPECT_TRUE(std::isnan(value_of(R2Score(), p, t, in_batches)));
          EXPECT_TRUE(std::isnan(value_of(ExplainedVariance(), p, t, in_batches)));
          EXPECT_TRUE(std::isnan(value_of(PearsonCorrelation(), p, t, in_batches)));
        }
        // Ranks know infinities: 3 of them out of place where the place is 3.
        const at::Tensor ranks = with(infinity > 0 ? 5.5 : -0.5, place);
        EXPECT_DOUBLE_EQ(value_of(SpearmanCorrelation(), one, rising, in_batches),
                         value_of(SpearmanCorrelation(), ranks, rising, in_batches));
      }
}

TEST(Regression, ErrorsNameTheMetric) {
  expect_error(
      [] {
        MeanAbsoluteError().update(at::zeros({3}), at::zeros({3, 1}));
      },
      {"MeanAbsoluteError: predictions and targets do not fit; got predictions [3] and targets [3, 1]"});
  expect_error([] { SpearmanCorrelation().update(at::zeros({3}), at::zeros({4})); }, {"SpearmanCorrelation: "});
  expect_error([] { CosineSimilarity().update(at::zeros({3}), at::zeros({3})); },
               {"CosineSimilarity: got predictions [3]; valid: [N, D]"});
}

}  // namespace
}  // namespace levin::metrics
