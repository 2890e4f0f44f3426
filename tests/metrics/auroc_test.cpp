#include <levin/core/metrics/auroc.h>

#include "metric_oracle.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace levin::metrics {
namespace {

at::Tensor binary_area(const at::Tensor& scores, const at::Tensor& labels, int64_t thresholds = 0) {
  return Auroc({.thresholds = thresholds}).update(scores, labels).compute();
}

/// By its definition: the share of pairs that are in order.
double area_of_pairs(const at::Tensor& scores, const at::Tensor& labels) {
  const at::Tensor positives = scores.masked_select(labels == 1).unsqueeze(1);
  const at::Tensor negatives = scores.masked_select(labels == 0).unsqueeze(0);
  const at::Tensor won = (positives > negatives).to(at::kDouble) + 0.5 * (positives == negatives).to(at::kDouble);
  return won.mean().item<double>();
}

TEST(Auroc, EqualsScikitLearnWithTies) {
  const at::Tensor scores = oracle_input("binary_scores", {80});
  const at::Tensor labels = oracle_classes("binary_labels", {80});
  expect_oracle(binary_area(scores, labels), "auroc/binary");
  expect_oracle(binary_area(scores, labels, 5), "auroc/binary/5");
  expect_oracle(binary_area(scores, labels, 50), "auroc/binary/50");
}

TEST(Auroc, EqualsScikitLearnAndTorchmetricsForClasses) {
  const at::Tensor logits = oracle_input("auroc_logits", {50, 4});
  const at::Tensor labels = oracle_classes("auroc_labels", {50});
  for (const std::string average : {"macro", "none"}) {
    for (const int64_t thresholds : {0, 20}) {
      const std::string name = "auroc/" + average + (thresholds == 0 ? "" : "/" + std::to_string(thresholds));
      Auroc::Options options{.num_classes = 4, .thresholds = thresholds, .average = average, .from_logits = true};
      expect_oracle(Auroc(options).update(logits, labels).compute(), name);
      options.from_logits = false;
      expect_oracle(Auroc(options).update(logits.softmax(1), labels).compute(), name);
    }
  }
}

TEST(Auroc, IsTheShareOfPairsInOrder) {
  for (const int64_t steps : {2, 7, 1000}) {
    const at::Tensor scores = at::rand({200}).mul(steps).round().div(steps);
    const at::Tensor labels = at::randint(2, {200}, at::kLong);
    EXPECT_NEAR(binary_area(scores, labels).item<double>(), area_of_pairs(scores, labels), 1e-12);
  }
}

TEST(Auroc, KnowsTheCornerCases) {
  const at::Tensor labels = at::tensor({0L, 0L, 1L, 1L});
  const at::Tensor scores = at::tensor({0.1F, 0.2F, 0.8F, 1.0F});
  for (const int64_t thresholds : {0, 11}) {
    EXPECT_EQ(binary_area(scores, labels, thresholds).item<double>(), 1);
    EXPECT_EQ(binary_area(scores, 1 - labels, thresholds).item<double>(), 0);
    EXPECT_EQ(binary_area(at::zeros({4}), labels, thresholds).item<double>(), 0.5);
    EXPECT_EQ(binary_area(scores.new_ones({4}), labels, thresholds).item<double>(), 0.5)
        << "scores of exactly 1 are ties as well";
    EXPECT_TRUE(all_nan(binary_area(scores, at::zeros({4}, at::kLong), thresholds))) << "no positives";
    EXPECT_TRUE(all_nan(binary_area(scores, labels.new_ones({4}), thresholds))) << "no negatives";
  }
}

TEST(Auroc, NeedsNoProbabilitiesWhenExact) {
  const at::Tensor logits = 50 * at::randn({100});
  const at::Tensor labels = at::randint(2, {100}, at::kLong);
  EXPECT_NEAR(binary_area(logits, labels).item<double>(), area_of_pairs(logits, labels), 1e-12);
  EXPECT_TRUE(at::equal(Auroc({.from_logits = true}).update(logits, labels).compute(), binary_area(logits, labels)));
}

TEST(Auroc, ScoresHaveTheShapeOfLabels) {
  const at::Tensor scores = at::rand({6, 1});
  const at::Tensor labels = at::tensor({0L, 1L, 0L, 1L, 1L, 0L});
  EXPECT_TRUE(at::equal(binary_area(scores, labels.unsqueeze(1) == 1), binary_area(scores.squeeze(1), labels)));
}

TEST(Auroc, MacroLeavesOutClassesWithoutPairs) {
  const at::Tensor scores = at::rand({30, 3});
  const at::Tensor labels = at::randint(2, {30}, at::kLong);  // never class 2
  for (const int64_t thresholds : {0, 10}) {
    const at::Tensor each =
        Auroc({.num_classes = 3, .thresholds = thresholds, .average = "none"}).update(scores, labels).compute();
    EXPECT_TRUE(all_nan(each[2]));
    const at::Tensor macro = Auroc({.num_classes = 3, .thresholds = thresholds}).update(scores, labels).compute();
    EXPECT_NEAR(macro.item<double>(), each.narrow(0, 0, 2).mean().item<double>(), 1e-12);
  }
}

TEST(Auroc, ANanScoreIsNotHidden) {
  const at::Tensor labels = at::tensor({0L, 1L, 1L});
  const at::Tensor scores = at::tensor({0.1F, 0.9F, std::numeric_limits<float>::quiet_NaN()});
  EXPECT_TRUE(all_nan(binary_area(scores, labels)));
  EXPECT_TRUE(all_nan(binary_area(scores, labels, 10)));
  const at::Tensor columns = at::stack({scores, scores.nan_to_num(0.5), scores.nan_to_num(0.5)}, 1);
  EXPECT_TRUE(all_nan(Auroc({.num_classes = 3}).update(columns, labels).compute()));
}

TEST(Auroc, BinnedMemoryIsConstant) {
  Auroc auroc({.thresholds = 100});
  for (int i = 0; i < 3; ++i) auroc.update(at::rand({500}), at::randint(2, {500}, at::kLong));
  EXPECT_EQ(auroc.states().size(), 1);
  EXPECT_EQ(auroc.states()[0].value.numel(), 2 * 102);
}

TEST(Auroc, NamesWhatIsWrong) {
  const at::Tensor labels = at::tensor({0L, 1L, 1L});
  expect_error([&] { binary_area(at::rand({3, 2}), labels); }, {"[metrics] Auroc", "[3, 2]", "select(1, 1)"});
  expect_error([&] { binary_area(at::rand({3}), labels + 1); }, {"got 2", "0 to 1"});
  expect_error([&] { binary_area(labels, labels); }, {"floating-point"});
  expect_error([&] { binary_area(at::rand({3}), at::rand({3})); }, {"labels must be integers"});
  expect_error([&] { binary_area(at::rand({3}) - 2, labels, 10); }, {"no probabilities", "from_logits"});
  expect_error([&] { Auroc({.num_classes = 3}).update(at::rand({3, 4}), labels); }, {"[3, 4]", "scores [N, 3]"});
  expect_error([] { Auroc({.thresholds = 1}); }, {"thresholds", "at least 2", "got 1"});

  // What a device that cannot look has kept.
  Auroc exact;
  exact.update(at::rand({3}), labels);
  exact.states()[1].value.fill_(7);
  expect_error([&] { exact.compute(); }, {"got 3 such samples"});
  Auroc binned({.thresholds = 4});
  binned.states()[0].value[0][1][0].fill_(1);
  expect_error([&] { binned.compute(); }, {"no probabilities", "negative"});
}

}  // namespace
}  // namespace levin::metrics
