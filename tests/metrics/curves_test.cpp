#include <levin/core/metrics/curves.h>

#include "metric_oracle.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace levin::metrics {
namespace {

struct Binary {
  at::Tensor scores = oracle_input("binary_scores", {80});
  at::Tensor labels = oracle_classes("binary_labels", {80});
};
struct Classes {
  at::Tensor logits = oracle_input("auroc_logits", {50, 4});
  at::Tensor labels = oracle_classes("auroc_labels", {50});
};

std::string suffix(int64_t thresholds) { return thresholds == 0 ? "" : fmt::format("/{}", thresholds); }

TEST(AveragePrecision, EqualsScikitLearnAndTorchmetrics) {
  const auto [scores, labels] = Binary();
  for (const int64_t thresholds : {0, 5, 50})
    expect_oracle(AveragePrecision({.thresholds = thresholds}).update(scores, labels).compute(),
                  "average_precision/binary" + suffix(thresholds));
  const auto [logits, classes] = Classes();
  for (const int64_t thresholds : {0, 20})
    for (const std::string average : {"macro", "weighted", "none"})
      expect_oracle(
          AveragePrecision({.num_classes = 4, .thresholds = thresholds, .average = average, .from_logits = true})
              .update(logits, classes)
              .compute(),
          "average_precision/" + average + suffix(thresholds));
}

TEST(AveragePrecision, OfOneClassAlone) {
  const at::Tensor scores = at::rand({20});
  for (const int64_t thresholds : {0, 10}) {
    EXPECT_TRUE(
        all_nan(AveragePrecision({.thresholds = thresholds}).update(scores, at::zeros({20}, at::kLong)).compute()));
    EXPECT_DOUBLE_EQ(
        AveragePrecision({.thresholds = thresholds}).update(scores, at::ones({20}, at::kLong)).compute().item<double>(),
        1);
    // All scores tied: the share of positives.
    EXPECT_DOUBLE_EQ(AveragePrecision({.thresholds = thresholds})
                         .update(at::full({4}, 0.5), at::tensor({1L, 0L, 0L, 0L}))
                         .compute()
                         .item<double>(),
                     0.25);
  }
  const at::Tensor columns = at::rand({30, 3});
  const at::Tensor labels = at::randint(2, {30}, at::kLong);  // never class 2
  for (const std::string average : {"macro", "weighted"}) {
    const at::Tensor value = AveragePrecision({.num_classes = 3, .average = average}).update(columns, labels).compute();
    EXPECT_TRUE(value.isfinite().item<bool>()) << average;
  }
}

TEST(Curves, EqualScikitLearnsAndTorchmetrics) {
  const auto [scores, labels] = Binary();
  for (const int64_t thresholds : {0, 5, 50}) {
    expect_oracle(PrecisionRecallCurve({.thresholds = thresholds}).update(scores, labels).compute(),
                  "pr_curve" + suffix(thresholds));
    expect_oracle(Roc({.thresholds = thresholds}).update(scores, labels).compute(), "roc" + suffix(thresholds));
  }
}

TEST(Curves, OfClassesAreThoseOfEachAgainstTheRest) {
  const auto [logits, labels] = Classes();
  const at::Tensor scores = logits.softmax(1);
  PrecisionRecallCurve all({.num_classes = 4});
  Roc rocs({.num_classes = 4, .from_logits = true});
  all.update(scores, labels);
  rocs.update(logits, labels);
  EXPECT_EQ(all.compute().dim(), 3);
  EXPECT_EQ(all.compute().size(1), 3);
  for (int64_t i = 0; i < 4; ++i) {
    const auto column = static_cast<size_t>(i);
    PrecisionRecallCurve alone;
    alone.update(scores.select(1, i), labels == i);
    EXPECT_TRUE(at::equal(all.curves()[column].y, alone.curves().front().y));
    EXPECT_TRUE(at::equal(all.curves()[column].thresholds, alone.curves().front().thresholds));
    Roc roc;
    roc.update(scores.select(1, i), labels == i);
    EXPECT_TRUE(at::equal(rocs.curves()[column].x, roc.curves().front().x));
  }
}

TEST(Curves, MergeOverRanksAndUnevenBatches) {
  const auto [scores, labels] = Binary();
  for (const int64_t thresholds : {0, 5}) {
    Roc first({.thresholds = thresholds});
    Roc second({.thresholds = thresholds});
    Roc without_data({.thresholds = thresholds});
    first.update(scores.narrow(0, 0, 7), labels.narrow(0, 0, 7));
    second.update(scores.narrow(0, 7, 1), labels.narrow(0, 7, 1));
    second.update(scores.narrow(0, 8, 72), labels.narrow(0, 8, 72));
    without_data.merge_from(second);
    without_data.merge_from(first);
    expect_oracle(without_data.compute(), "roc" + suffix(thresholds));
    Roc loaded({.thresholds = thresholds});
    loaded.load_state_dict(without_data.state_dict());
    expect_oracle(loaded.compute(), "roc" + suffix(thresholds));
  }
}

TEST(Curves, AreNanWhereNothingIsKnown) {
  const at::Tensor scores = at::tensor({0.1F, 0.4F, 0.9F});
  const at::Tensor negatives = at::zeros({3}, at::kLong);
  EXPECT_TRUE(all_nan(Roc().update(scores, negatives).compute()[1])) << "shares of no positives";
  EXPECT_FALSE(Roc().update(scores, negatives).compute()[0].isnan().any().item<bool>());
  const at::Tensor with_nan = at::tensor({0.1F, std::numeric_limits<float>::quiet_NaN(), 0.9F});
  const at::Tensor labels = at::tensor({0L, 1L, 1L});
  for (const int64_t thresholds : {0, 4}) {
    EXPECT_TRUE(all_nan(AveragePrecision({.thresholds = thresholds}).update(with_nan, labels).compute()));
    EXPECT_TRUE(all_nan(PrecisionAtFixedRecall({.thresholds = thresholds}).update(with_nan, labels).compute()));
    EXPECT_TRUE(Roc({.thresholds = thresholds}).update(with_nan, labels).compute().isnan().any().item<bool>());
  }
  EXPECT_EQ(Roc().compute().size(1), 1) << "nothing but the beginning";
}

TEST(FixedPoints, EqualTorchmetrics) {
  const auto [scores, labels] = Binary();
  const auto [logits, classes] = Classes();
  for (const int64_t thresholds : {0, 20}) {
    for (const double least : {0.3, 0.6, 0.9}) {
      const std::string of = fmt::format("{}{}", least, suffix(thresholds));
      const auto both = [](auto&& metric) { return at::stack({metric.compute(), metric.threshold()}); };
      PrecisionAtFixedRecall precision({.min_recall = least, .thresholds = thresholds});
      precision.update(scores, labels);
      expect_oracle(both(precision), "precision_at/binary/" + of);
      RecallAtFixedPrecision recall({.min_precision = least, .thresholds = thresholds});
      recall.update(scores, labels);
      expect_oracle(both(recall), "recall_at/binary/" + of);
      PrecisionAtFixedRecall precisions(
          {.min_recall = least, .num_classes = 4, .thresholds = thresholds, .from_logits = true});
      precisions.update(logits, classes);
      expect_oracle(both(precisions), "precision_at/classes/" + of);
      RecallAtFixedPrecision recalls(
          {.min_precision = least, .num_classes = 4, .thresholds = thresholds, .from_logits = true});
      recalls.update(logits, classes);
      expect_oracle(both(recalls), "recall_at/classes/" + of);
    }
  }
}

TEST(FixedPoints, WithoutAThresholdAreZero) {
  RecallAtFixedPrecision recall({.min_precision = 0.9});
  recall.update(at::tensor({0.9F, 0.1F}), at::tensor({0L, 1L}));
  EXPECT_EQ(recall.compute().item<double>(), 0);
  EXPECT_TRUE(all_nan(recall.threshold()));
}

/// Without positives no precision is above 0; without negatives each is 1. Areas are NaN there (auroc_test.cpp).
TEST(FixedPoints, OfOneClassAlone) {
  const at::Tensor scores = at::tensor({0.9F, 0.1F, 0.4F});
  for (const int64_t thresholds : {0, 5}) {
    const auto found = [&](int64_t label) {
      const at::Tensor labels = at::full({3}, label, at::kLong);
      PrecisionAtFixedRecall precision({.min_recall = 0.5, .thresholds = thresholds});
      RecallAtFixedPrecision recall({.min_precision = 0.5, .thresholds = thresholds});
      precision.update(scores, labels);
      recall.update(scores, labels);
      return std::pair(precision.compute().item<double>(), recall.compute().item<double>());
    };
    EXPECT_EQ(found(0), std::pair(0.0, 0.0));
    EXPECT_EQ(found(1), std::pair(1.0, 1.0));
  }
}

TEST(ScoreMetrics, NameWhatIsWrong) {
  const at::Tensor labels = at::tensor({0L, 1L, 1L});
  expect_error([&] { Roc().update(at::rand({3, 2}), labels); }, {"[metrics] Roc:", "[3, 2]"});
  expect_error([&] { AveragePrecision().update(at::rand({3}), labels + 1); }, {"AveragePrecision", "got 2"});
  expect_error([] { AveragePrecision({.average = "micro"}); }, {"AveragePrecision.average", "weighted"});
  expect_error([] { PrecisionAtFixedRecall({.min_recall = 2}); }, {"min_recall", "at most 1"});
}

}  // namespace
}  // namespace levin::metrics
