#include <levin/core/metrics/confusion_matrix.h>

#include "metric_oracle.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <string>

namespace levin::metrics {
namespace {

TEST(ConfusionMatrix, EqualsTorchmetrics) {
  const at::Tensor logits = oracle_input("class_logits", {60, 6});
  const at::Tensor labels = oracle_classes("class_labels", {60});
  for (const std::string normalize : {"none", "true", "pred", "all"}) {
    ConfusionMatrix matrix({.num_classes = 6, .normalize = normalize});
    expect_oracle(matrix.update(logits, labels).compute(), "confusion/" + normalize);
  }
}

TEST(ConfusionMatrix, CountsAreIntegersAndStartAtZero) {
  ConfusionMatrix matrix({.num_classes = 3});
  EXPECT_TRUE(at::equal(matrix.compute(), at::zeros({3, 3}, at::kLong)));
  matrix.update(at::tensor({2L, 2L, 0L}), at::tensor({1L, 1L, 0L}));
  const at::Tensor before = matrix.compute();
  EXPECT_EQ(before[1][2].item<int64_t>(), 2);
  EXPECT_EQ(before.sum().item<int64_t>(), 3);
  matrix.update(at::tensor({2L}), at::tensor({1L}));
  EXPECT_EQ(before[1][2].item<int64_t>(), 2) << "a computed value stays as it was";
}

TEST(ConfusionMatrix, RefusesClassesOutOfRange) {
  ConfusionMatrix matrix({.num_classes = 3});
  expect_error(
      [&] {
        matrix.update(at::tensor({0L, 3L}), at::tensor({0L, 1L}));
      },
      {"[metrics] ConfusionMatrix", "got 3"});
  // What a device that cannot look has counted.
  matrix.states()[0].value[3][3].fill_(2);
  expect_error([&] { matrix.compute(); }, {"ConfusionMatrix", "got 2 such samples"});
  expect_error([] { ConfusionMatrix({.num_classes = 3, .normalize = "rows"}); }, {"normalize", "rows"});
}

}  // namespace
}  // namespace levin::metrics
