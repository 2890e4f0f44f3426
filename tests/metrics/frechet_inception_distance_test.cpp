#include <levin/core/metrics/frechet_inception_distance.h>

#include "metric_oracle.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace levin::metrics {
namespace {

/// PixelFeatures of oracles/metrics.py.
at::Tensor pixel_features(const at::Tensor& pictures) {
  const at::Tensor rows = pictures.flatten(1);
  return at::cat({rows.slice(1, 0, std::nullopt, 3), rows.square().mean(1, /*keepdim=*/true)}, 1);
}

FrechetInceptionDistance make_distance() { return FrechetInceptionDistance({pixel_features, 7}); }

at::Tensor distance(const at::Tensor& real, const at::Tensor& generated) {
  return make_distance().update(real, true).update(generated, false).compute();
}

struct Pictures {
  at::Tensor real = oracle_input("real_pictures", {40, 2, 3, 3});
  at::Tensor generated = oracle_input("generated_pictures", {33, 2, 3, 3});
};

TEST(FrechetInceptionDistance, EqualsTorchmetrics) {
  const Pictures pictures;
  expect_oracle(distance(pictures.real, pictures.generated), "fid");
  expect_oracle(distance(pictures.real.narrow(0, 0, 4), pictures.generated.narrow(0, 0, 3)), "fid/few");
  expect_oracle(distance(pictures.real, pictures.generated.narrow(0, 0, 1).expand({6, -1, -1, -1})), "fid/constant");
  expect_oracle(distance(pictures.real, pictures.generated * 100 + 1000), "fid/far");
}

TEST(FrechetInceptionDistance, UnevenBatchesAndRanksMakeNoDifference) {
  const Pictures pictures;
  const double whole = distance(pictures.real, pictures.generated).item<double>();
  auto first = make_distance();
  auto second = make_distance();
  for (int64_t i = 0; i < 40; i += 9) first.update(pictures.real.slice(0, i, i + 9), true);
  first.update(pictures.generated.narrow(0, 0, 1), false).update(pictures.real.narrow(0, 0, 0), true);
  second.update(pictures.generated.narrow(0, 1, 32), false);
  first.merge_from(second);
  EXPECT_NEAR(first.compute().item<double>(), whole, 1e-12);
  auto restored = make_distance();
  restored.load_state_dict(first.state_dict());
  EXPECT_EQ(restored.compute().item<double>(), first.compute().item<double>());
}

TEST(FrechetInceptionDistance, OfTheSamePicturesIsZero) {
  const at::Tensor real = Pictures().real;
  EXPECT_NEAR(distance(real, real.flip(0)).item<double>(), 0, 1e-9);
  EXPECT_NEAR(distance(at::ones({3, 2, 3, 3}), at::ones({2, 2, 3, 3})).item<double>(), 0, 1e-12);
}

TEST(FrechetInceptionDistance, HasNoValueOfTooFewAndOfWhatIsNoNumber) {
  const Pictures pictures;
  EXPECT_TRUE(all_nan(make_distance().compute()));
  EXPECT_TRUE(all_nan(make_distance().update(pictures.real, true).compute()));
  EXPECT_TRUE(all_nan(distance(pictures.real, pictures.generated.narrow(0, 0, 1))));
  at::Tensor broken = pictures.generated.clone();
  broken[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(all_nan(distance(pictures.real, broken)));
  broken[3] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(all_nan(distance(pictures.real, broken)));
}

TEST(FrechetInceptionDistance, KeepsSumsOf64BitsAndNoGradients) {
  FrechetInceptionDistance metric({[](const at::Tensor& images) { return images.flatten(1); }, 2});
  const at::Tensor images = at::full({4, 2}, 1000.25).to(at::kHalf).set_requires_grad(true);
  metric.update(images, true);
  EXPECT_EQ(metric.states()[0].value.scalar_type(), at::kDouble);
  EXPECT_FALSE(metric.states()[0].value.requires_grad());
  EXPECT_EQ(metric.states()[0].value[0][0].item<double>(), 4) << "images";
  EXPECT_EQ(metric.states()[0].value[0][1].item<double>(), 1000) << "their mean";
}

TEST(FrechetInceptionDistance, NamesWhatIsWrong) {
  expect_error([] { FrechetInceptionDistance({.num_features = 3}); },
               {"FrechetInceptionDistance.features must be set"});
  expect_error([] { FrechetInceptionDistance({.features = pixel_features}); },
               {"num_features must be at least 1", "got 0"});
  expect_error(
      [] {
        make_distance().update(at::ones({4, 2, 3, 4}), true);
      },
      {"[metrics] FrechetInceptionDistance", "got [4, 9] Float of images [4, 2, 3, 4]", "[N, 7]",
       "hint: set num_features"});
  expect_error(
      [] {
        FrechetInceptionDistance({[](const at::Tensor&) { return at::Tensor(); }, 2}).update({}, true);
      },
      {"got an undefined tensor"});
}

}  // namespace
}  // namespace levin::metrics
