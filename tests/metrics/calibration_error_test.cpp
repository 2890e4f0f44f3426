#include <levin/core/metrics/calibration_error.h>

#include "metric_oracle.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace levin::metrics {
namespace {

TEST(CalibrationError, EqualsTorchmetrics) {
  const at::Tensor logits = oracle_input("binary_logits", {80});
  const at::Tensor labels = oracle_classes("binary_labels", {80});
  const at::Tensor of_classes = oracle_input("auroc_logits", {50, 4});
  const at::Tensor classes = oracle_classes("auroc_labels", {50});
  for (const std::string norm : {"l1", "l2", "max"}) {
    for (const int64_t bins : {4, 15}) {
      expect_oracle(CalibrationError({.n_bins = bins, .norm = norm}).update(logits.sigmoid(), labels).compute(),
                    fmt::format("calibration/binary/{}/{}", norm, bins));
      expect_oracle(CalibrationError({.num_classes = 4, .n_bins = bins, .norm = norm, .from_logits = true})
                        .update(of_classes, classes)
                        .compute(),
                    fmt::format("calibration/classes/{}/{}", norm, bins));
    }
  }
}

TEST(CalibrationError, KnowsTheCornerCases) {
  const at::Tensor ones = at::ones({5});
  EXPECT_EQ(CalibrationError().update(ones, at::ones({5}, at::kLong)).compute().item<double>(), 0);
  EXPECT_EQ(CalibrationError().update(ones, at::zeros({5}, at::kLong)).compute().item<double>(), 1);
  EXPECT_EQ(
      CalibrationError({.norm = "max"}).update(at::zeros({5}), at::zeros({5}, at::kLong)).compute().item<double>(), 0);
  const at::Tensor with_nan = at::tensor({0.2F, std::numeric_limits<float>::quiet_NaN()});
  for (const std::string norm : {"l1", "l2", "max"})
    EXPECT_TRUE(all_nan(CalibrationError({.norm = norm}).update(with_nan, at::tensor({0L, 1L})).compute())) << norm;
}

TEST(CalibrationError, NamesWhatIsWrong) {
  const at::Tensor labels = at::tensor({0L, 1L, 1L});
  expect_error([&] { CalibrationError().update(at::rand({3, 2}), labels); }, {"CalibrationError", "[3, 2]"});
  expect_error([&] { CalibrationError({.num_classes = 3}).update(at::rand({3, 4}), labels); }, {"[N, 3, ...]"});
  expect_error([&] { CalibrationError().update(at::rand({3}) + 1.1, labels); }, {"no probabilities", "from_logits"});
  expect_error([&] { CalibrationError().update(at::rand({3}), labels + 1); }, {"got 2", "0 to 1"});
  expect_error([] { CalibrationError({.norm = "l3"}); }, {"CalibrationError.norm"});

  // What a device that cannot look has kept.
  CalibrationError unseen({.n_bins = 4});
  unseen.states()[0].value[0][5].fill_(2);
  expect_error([&] { unseen.compute(); }, {"no probabilities", "got 2"});
}

}  // namespace
}  // namespace levin::metrics
