#include <levin/core/metrics/image_quality.h>

#include "metric_oracle.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <limits>

namespace levin::metrics {
namespace {

TEST(PeakSignalNoiseRatio, EqualsTorchmetrics) {
  const at::Tensor targets = oracle_input("targets", {12, 3});
  const at::Tensor predictions = oracle_input("predictions", {12, 3});
  expect_oracle(PeakSignalNoiseRatio({.data_range = 4}).update(predictions, targets).compute(), "psnr");
  PeakSignalNoiseRatio first({.data_range = 4});
  PeakSignalNoiseRatio second({.data_range = 4});
  first.update(predictions.narrow(0, 0, 5), targets.narrow(0, 0, 5));
  second.update(predictions.narrow(0, 5, 7), targets.narrow(0, 5, 7));
  first.merge_from(second);
  expect_oracle(first.compute(), "psnr");
}

TEST(PeakSignalNoiseRatio, EqualPicturesHaveNoNoise) {
  EXPECT_TRUE(all_nan(PeakSignalNoiseRatio().compute()));
  EXPECT_TRUE(PeakSignalNoiseRatio().update(at::ones({2, 3}), at::ones({2, 3})).compute().isinf().item<bool>());
}

TEST(PeakSignalNoiseRatio, NamesWhatIsWrong) {
  expect_error(
      [] {
        PeakSignalNoiseRatio().update(at::rand({2, 3}), at::rand({3, 2}));
      },
      {"[metrics] PeakSignalNoiseRatio", "[2, 3]", "[3, 2]"});
  expect_error([] { PeakSignalNoiseRatio({.data_range = 0}); }, {"data_range", "got 0"});
}

TEST(StructuralSimilarity, EqualsTorchmetrics) {
  const at::Tensor targets = oracle_input("target_pictures", {2, 2, 12, 9});
  const at::Tensor pictures = oracle_input("pictures", {2, 2, 12, 9});
  for (const auto type : {at::kFloat, at::kDouble}) {
    expect_oracle(StructuralSimilarity().update(pictures.to(type), targets.to(type)).compute(), "ssim");
    expect_oracle(StructuralSimilarity({.data_range = 2, .sigma = 0.8, .k1 = 0.02, .k2 = 0.05})
                      .update(pictures.to(type), targets.to(type))
                      .compute(),
                  "ssim/options");
  }
}

TEST(StructuralSimilarity, KnowsTheCornerCases) {
  const at::Tensor picture = at::rand({3, 1, 8, 8});
  EXPECT_NEAR(StructuralSimilarity().update(picture, picture).compute().item<double>(), 1, 1e-6);
  EXPECT_NEAR(StructuralSimilarity().update(at::ones({1, 1, 8, 8}), at::ones({1, 1, 8, 8})).compute().item<double>(), 1,
              1e-6);
  EXPECT_TRUE(all_nan(StructuralSimilarity()
                          .update(picture, at::full({3, 1, 8, 8}, std::numeric_limits<float>::quiet_NaN()))
                          .compute()));
}

TEST(StructuralSimilarity, NamesWhatIsWrong) {
  expect_error(
      [] {
        StructuralSimilarity().update(at::ones({1, 1, 5, 9}), at::ones({1, 1, 5, 9}));
      },
      {"StructuralSimilarity: got predictions [1, 1, 5, 9]", "at least 6 by 6 pixels"});
  expect_error([] { StructuralSimilarity().update(at::ones({8, 8}), at::ones({8, 8})); }, {"[N, C, H, W]"});
  expect_error([] { StructuralSimilarity({.data_range = 0}); }, {"StructuralSimilarity.data_range"});
}

}  // namespace
}  // namespace levin::metrics
