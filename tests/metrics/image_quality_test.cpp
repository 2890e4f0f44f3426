#include <levin/core/metrics/image_quality.h>

#include "metric_oracle.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace levin::metrics
