#include <levin/core/metrics/pictures.h>

#include "metric_oracle.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

namespace levin::metrics {
namespace {

std::vector<int> color_at(const at::Tensor& image, int64_t x, int64_t y) {
  std::vector<int> color;
  for (int64_t channel = 0; channel < 3; ++channel) color.push_back(image[channel][y][x].item<int>());
  return color;
}

const std::vector<int> kPaper = {255, 255, 255};
const std::vector<int> kInk = {31, 119, 180};

TEST(ConfusionMatrixImage, IsTheDarkerTheLargerThePartOfTheRow) {
  const at::Tensor counts = at::tensor({8L, 0L, 4L, 4L}).reshape({2, 2});
  const at::Tensor image = confusion_matrix_image(counts, {.cell = 10});
  ASSERT_EQ(image.sizes(), (std::vector<int64_t>{3, 21, 21}));
  EXPECT_EQ(image.scalar_type(), at::kByte);
  EXPECT_EQ(color_at(image, 5, 5), kInk);
  EXPECT_EQ(color_at(image, 15, 5), kPaper);
  EXPECT_EQ(color_at(image, 5, 15), color_at(image, 15, 15));
  EXPECT_EQ(color_at(image, 5, 15), (std::vector<int>{143, 187, 218}));
  EXPECT_TRUE(at::equal(image, confusion_matrix_image(counts.to(at::kDouble) / 16, {.cell = 10}))) << "shares as well";
}

TEST(ConfusionMatrixImage, WritesNumbersWhereThereIsRoom) {
  const at::Tensor one = confusion_matrix_image(at::tensor({1L, 0L, 0L, 1L}).reshape({2, 2}));
  const at::Tensor seven = confusion_matrix_image(at::tensor({7L, 0L, 0L, 7L}).reshape({2, 2}));
  ASSERT_EQ(one.sizes(), (std::vector<int64_t>{3, 97, 97}));
  EXPECT_FALSE(at::equal(one, seven)) << "the same colours, other numbers";
  EXPECT_TRUE(at::equal(one.narrow(1, 0, 32), seven.narrow(1, 0, 32))) << "the same classes above";
  // Counts of any size, none at all and NaN are drawn.
  for (const auto& matrix : {at::tensor({123456L, 3L, 7890123L, 2000000000L}), at::zeros({4}, at::kLong)})
    EXPECT_EQ(confusion_matrix_image(matrix.reshape({2, 2})).size(1), 97);
  EXPECT_EQ(confusion_matrix_image(at::full({2, 2}, std::numeric_limits<double>::quiet_NaN())).size(1), 97);
}

TEST(CurveImage, GoesFromPointToPoint) {
  const Curve curve{.x = at::tensor({0.0, 0.0, 1.0}), .y = at::tensor({0.0, 1.0, 1.0}), .thresholds = at::zeros({3})};
  const at::Tensor image = curve_image({curve}, {.size = 100});
  ASSERT_EQ(image.sizes(), (std::vector<int64_t>{3, 164, 164}));
  EXPECT_EQ(color_at(image, 32, 82), kInk) << "up at the left";
  EXPECT_EQ(color_at(image, 82, 32), kInk) << "along the top";
  EXPECT_EQ(color_at(image, 70, 70), kPaper);
}

TEST(CurveImage, DrawsStepsAndLeavesOutNan) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Curve curve{.x = at::tensor({1.0, nan, 0.0}), .y = at::tensor({0.5, nan, 1.0}), .thresholds = at::zeros({3})};
  const at::Tensor steps = curve_image({curve}, {.size = 100, .steps = true});
  EXPECT_EQ(color_at(steps, 60, 82), kInk) << "the recall's rise has the precision of its end";
  EXPECT_EQ(color_at(steps, 32, 60), kInk);
  const at::Tensor nothing = curve_image({}, {.size = 100});
  EXPECT_TRUE(
      at::equal(nothing, curve_image({{at::tensor({nan}), at::tensor({nan}), at::tensor({nan})}}, {.size = 100})));
}

TEST(CurveImage, IsThatOfAMetric) {
  const at::Tensor scores = at::rand({50, 3});
  const at::Tensor labels = at::randint(3, {50}, at::kLong);
  Roc roc({.num_classes = 3});
  PrecisionRecallCurve curve({.num_classes = 3});
  roc.update(scores, labels);
  curve.update(scores, labels);
  EXPECT_EQ(curve_image(roc).sizes(), (std::vector<int64_t>{3, 320, 320}));
  EXPECT_EQ(curve_image(curve).sizes(), (std::vector<int64_t>{3, 320, 320}));
}

TEST(Pictures, NameWhatIsWrong) {
  expect_error([] { confusion_matrix_image(at::zeros({2, 3})); }, {"confusion_matrix_image: got [2, 3]"});
  expect_error([] { curve_image({}, {.size = 3}); }, {"curve_image: got a size of 3"});
}

}  // namespace
}  // namespace levin::metrics
