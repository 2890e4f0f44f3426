#include <levin/core/base/image_bytes.h>

#include <levin/core/base/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace levin {
namespace {

TEST(ImageBytes, FractionsBecomeBytes) {
  const at::Tensor image = at::tensor({0.0, 1.0, 0.5, -3.0, 7.0, std::nan("")}).reshape({1, 2, 3});
  const at::Tensor expected = at::tensor({0, 255, 128, 0, 255, 0}, at::kByte).reshape({1, 2, 3});
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16})
    EXPECT_TRUE(image_bytes(image.to(type)).equal(expected)) << c10::toString(type);
}

TEST(ImageBytes, BytesStayAndBecomeContiguous) {
  const at::Tensor image = at::arange(24, at::kByte).reshape({2, 4, 3}).permute({2, 0, 1});
  const at::Tensor bytes = image_bytes(image);
  EXPECT_TRUE(bytes.is_contiguous());
  EXPECT_TRUE(bytes.equal(image));
}

TEST(ImageBytes, OtherTensorsAreRefusedByName) {
  for (const at::Tensor& wrong : {at::zeros({2, 2}), at::zeros({2, 5, 5}), at::zeros({1, 0, 5}),
                                  at::zeros({1, 2, 2}, at::kLong), at::zeros({1, 1, 2, 2}), at::Tensor()})
    EXPECT_THROW(image_bytes(wrong), Error);
  try {
    image_bytes(at::zeros({2, 5, 7}, at::kInt));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("got Int [2, 5, 7]; valid: "), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace levin
