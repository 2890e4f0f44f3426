#include <levin/core/data/image_grid.h>

#include <levin/core/base/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace levin {
namespace {

/// Images of one pixel.
at::Tensor pixels(std::initializer_list<double> values) {
  return at::tensor(values, at::kFloat).reshape({static_cast<int64_t>(values.size()), 1, 1, 1});
}

TEST(ImageGrid, RowsAndPaddingAreThoseOfTorchvision) {
  const at::Tensor grid = make_grid(pixels({1, 2, 3}), {.images_per_row = 2, .padding = 1, .pad_value = -1});
  // torchvision.utils.make_grid(torch.tensor([1., 2, 3]).view(3, 1, 1, 1), nrow=2, padding=1, pad_value=-1)[0]
  const at::Tensor expected = at::tensor({-1.0, -1.0, -1.0, -1.0, -1.0,  //
                                          -1.0, 1.0,  -1.0, 2.0,  -1.0,  //
                                          -1.0, -1.0, -1.0, -1.0, -1.0,  //
                                          -1.0, 3.0,  -1.0, -1.0, -1.0,  //
                                          -1.0, -1.0, -1.0, -1.0, -1.0},
                                         at::kFloat);
  EXPECT_TRUE(grid.equal(expected.reshape({1, 5, 5}))) << grid;
}

TEST(ImageGrid, FewImagesMakeANarrowGridOfTheirOwnType) {
  const at::Tensor images = at::arange(2 * 3 * 4 * 5, at::kByte).reshape({2, 3, 4, 5});
  const at::Tensor grid = make_grid(images);
  EXPECT_EQ(grid.sizes(), (std::vector<int64_t>{3, 4 + 4, 2 * 5 + 6}));
  EXPECT_EQ(grid.scalar_type(), at::kByte);
  EXPECT_TRUE(grid.narrow(1, 2, 4).narrow(2, 9, 5).equal(images[1]));
  EXPECT_TRUE(make_grid(images, {.padding = 0}).equal(at::cat({images[0], images[1]}, 2)));
}

TEST(ImageGrid, NormalizesAllTogetherOrEachByItself) {
  const at::Tensor images = at::tensor({0.0, 2.0, 4.0, 8.0}, at::kFloat).reshape({2, 1, 1, 2});
  const auto row = [&](const GridOptions& options) { return make_grid(images, options).flatten(); };
  EXPECT_TRUE(row({.padding = 0, .normalize = true}).equal(at::tensor({0.0, 0.25, 0.5, 1.0}, at::kFloat)));
  EXPECT_TRUE(
      row({.padding = 0, .normalize = true, .scale_each = true}).equal(at::tensor({0.0, 1.0, 0.0, 1.0}, at::kFloat)));
  EXPECT_TRUE(row({.padding = 0, .normalize = true, .value_range = {{2, 4}}})
                  .equal(at::tensor({0.0, 0.0, 1.0, 1.0}, at::kFloat)));
  EXPECT_TRUE(images.flatten().equal(at::tensor({0.0, 2.0, 4.0, 8.0}, at::kFloat))) << "the images stay as they are";
  EXPECT_TRUE(make_grid(pixels({3}), {.padding = 0, .normalize = true}).equal(at::zeros({1, 1, 1})))
      << "one value has no range to divide by";
}

TEST(ImageGrid, NothingElseIsAGrid) {
  EXPECT_THROW(make_grid(at::zeros({1, 2, 2})), Error);
  EXPECT_THROW(make_grid(at::zeros({0, 1, 2, 2})), Error);
  EXPECT_THROW(make_grid(at::Tensor()), Error);
  EXPECT_THROW(make_grid(pixels({1}), {.images_per_row = 0}), Error);
  EXPECT_THROW(make_grid(pixels({1}), {.padding = -1}), Error);
}

}  // namespace
}  // namespace levin
