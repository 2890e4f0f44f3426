#include <levin/core/metrics/precision_recall.h>

#include "metric_oracle.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <string>

namespace levin::metrics {
namespace {

TEST(PrecisionRecall, EqualTorchmetrics) {
  const at::Tensor logits = oracle_input("class_logits", {60, 6});
  const at::Tensor labels = oracle_classes("class_labels", {60});
  for (const std::string average : {"micro", "macro", "weighted", "none"}) {
    const ClassScoreOptions options{.num_classes = 6, .average = average};
    expect_oracle(Precision(options).update(logits, labels).compute(), "precision/" + average);
    expect_oracle(Recall(options).update(logits, labels).compute(), "recall/" + average);
    expect_oracle(F1Score(options).update(logits, labels).compute(), "f1/" + average);
  }
}

TEST(PrecisionRecall, TheirLikeEqualTorchmetrics) {
  const at::Tensor logits = oracle_input("class_logits", {60, 6});
  const at::Tensor labels = oracle_classes("class_labels", {60});
  for (const std::string average : {"micro", "macro", "weighted", "none"}) {
    const ClassScoreOptions options{.num_classes = 6, .average = average};
    expect_oracle(Specificity(options).update(logits, labels).compute(), "specificity/" + average);
    expect_oracle(JaccardIndex(options).update(logits, labels).compute(), "jaccard/" + average);
    expect_oracle(HammingDistance(options).update(logits, labels).compute(), "hamming/" + average);
    const auto f_beta = [&](double beta) {
      return FBetaScore({.num_classes = 6, .beta = beta, .average = average}).update(logits, labels).compute();
    };
    expect_oracle(f_beta(0.5), "fbeta/" + average + "/0.5");
    expect_oracle(f_beta(2), "fbeta/" + average + "/2.0");
  }
  expect_error([] { FBetaScore({.num_classes = 3, .beta = 0}); }, {"FBetaScore.beta must be above 0"});
}

TEST(PrecisionRecall, BinaryScoresAreThoseOfClassOne) {
  const at::Tensor predicted = at::tensor({1L, 1L, 1L, 0L, 0L});
  const at::Tensor labels = at::tensor({1L, 0L, 1L, 1L, 0L});
  const ClassScoreOptions options{.num_classes = 2, .average = "none"};
  EXPECT_DOUBLE_EQ(Precision(options).update(predicted, labels).compute()[1].item<double>(), 2.0 / 3);
  EXPECT_DOUBLE_EQ(Recall(options).update(predicted, labels).compute()[1].item<double>(), 2.0 / 3);
  EXPECT_DOUBLE_EQ(F1Score(options).update(predicted == 1, labels).compute()[1].item<double>(), 2.0 / 3);
}

TEST(PrecisionRecall, ErrorsNameTheMetric) {
  expect_error([] { Precision({.num_classes = 3}).update(at::tensor({0L}), at::tensor({0L, 1L})); }, {"Precision: "});
  expect_error([] { Recall({.num_classes = 3}).update(at::tensor({0L}), at::tensor({5L})); }, {"Recall: ", "got 5"});
  EXPECT_EQ(ClassScoreOptions().average, "micro");  // as torchmetrics.Precision(task="multiclass")
  expect_error([] { F1Score({.num_classes = 3, .average = "mean"}); }, {"F1Score.average", "mean"});
}

}  // namespace
}  // namespace levin::metrics
