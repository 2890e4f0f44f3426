#include <levin/core/metrics/agreement.h>

#include "metric_oracle.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <string>

namespace levin::metrics {
namespace {

TEST(Agreement, EqualsTorchmetrics) {
  const at::Tensor logits = oracle_input("class_logits", {60, 6});
  const at::Tensor labels = oracle_classes("class_labels", {60});
  expect_oracle(MatthewsCorrelation({.num_classes = 6}).update(logits, labels).compute(), "matthews");
  for (const std::string weights : {"none", "linear", "quadratic"})
    expect_oracle(CohenKappa({.num_classes = 6, .weights = weights}).update(logits, labels).compute(),
                  "kappa/" + weights);
}

TEST(Agreement, OfOneClassIsByChance) {
  const at::Tensor zeros = at::tensor({0L, 0L, 0L});
  const at::Tensor mixed = at::tensor({0L, 1L, 0L});
  MatthewsCorrelation matthews({.num_classes = 2});
  EXPECT_TRUE(all_nan(matthews.compute()));
  EXPECT_EQ(matthews.update(zeros, mixed).compute().item<double>(), 0);
  CohenKappa kappa({.num_classes = 2});
  EXPECT_TRUE(all_nan(kappa.compute()));
  EXPECT_TRUE(all_nan(kappa.update(zeros, zeros).compute()));
  EXPECT_EQ(kappa.update(zeros, mixed).compute().item<double>(), 0);
}

TEST(Agreement, RefusesWhatItCannotCount) {
  expect_error([] { MatthewsCorrelation({}); }, {"MatthewsCorrelation.num_classes must be at least 2"});
  expect_error([] { CohenKappa({.num_classes = 3, .weights = "cubic"}); }, {"CohenKappa.weights", "cubic"});
}

}  // namespace
}  // namespace levin::metrics
