#include <levin/core/accelerators/peak_flops.h>

#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace levin {
namespace {

TEST(PeakFlops, KnowsDevicesByTheirDriversNames) {
  EXPECT_EQ(peak_tflops("NVIDIA H100 80GB HBM3", MatrixFormat::kHalf), 989.4);
  EXPECT_EQ(peak_tflops("NVIDIA H100 PCIe", MatrixFormat::kHalf), 756);
  EXPECT_EQ(peak_tflops("NVIDIA H200", MatrixFormat::kTensorFloat32), 494.7);
  EXPECT_EQ(peak_tflops("NVIDIA A100-SXM4-80GB", MatrixFormat::kFloat64), 19.5);
  EXPECT_EQ(peak_tflops("NVIDIA A10", MatrixFormat::kHalf), 125);
  EXPECT_EQ(peak_tflops("NVIDIA L4", MatrixFormat::kHalf), 121);
  EXPECT_EQ(peak_tflops("NVIDIA L40S", MatrixFormat::kHalf), 362);
  EXPECT_EQ(peak_tflops("Tesla V100-SXM2-16GB", MatrixFormat::kFloat32), 15.7);
  EXPECT_EQ(peak_tflops("Tesla T4", MatrixFormat::kHalf), 65);
  EXPECT_EQ(peak_tflops("NVIDIA GeForce RTX 3090 Ti", MatrixFormat::kHalf), 80);
  EXPECT_EQ(peak_tflops("NVIDIA GeForce RTX 3090", MatrixFormat::kHalf), 71);
  EXPECT_EQ(peak_tflops("NVIDIA B200", MatrixFormat::kHalf), 2250);
}

TEST(PeakFlops, TakesNoDeviceForAnother) {
  EXPECT_EQ(peak_tflops("NVIDIA A10G", MatrixFormat::kHalf), std::nullopt);
  EXPECT_EQ(peak_tflops("NVIDIA GeForce RTX 4080 SUPER", MatrixFormat::kHalf), std::nullopt);
  EXPECT_EQ(peak_tflops("NVIDIA GeForce RTX 4090 Laptop GPU", MatrixFormat::kHalf), std::nullopt);
  for (const char* name :
       {"NVIDIA GB200", "NVIDIA GeForce RTX 3080 Ti", "NVIDIA GeForce RTX 4090 D", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"})
    EXPECT_EQ(peak_tflops(name, MatrixFormat::kHalf), std::nullopt) << name;
  EXPECT_EQ(peak_tflops("cpu", MatrixFormat::kFloat32), std::nullopt);
  EXPECT_EQ(peak_tflops("", MatrixFormat::kHalf), std::nullopt);
}

TEST(PeakFlops, HasNothingWhereTheMakerGivesNoRate) {
  EXPECT_EQ(peak_tflops("NVIDIA L4", MatrixFormat::kFloat64), std::nullopt);
  // Without TensorFloat32 units float32 stays what it is.
  EXPECT_EQ(peak_tflops("Tesla T4", MatrixFormat::kTensorFloat32), 8.1);
}

TEST(PeakFlops, FollowsTheOptionForFloat32) {
  const auto before = at::globalContext().float32MatmulPrecision();
  at::globalContext().setFloat32MatmulPrecision("highest");
  EXPECT_EQ(matrix_format(at::kFloat), MatrixFormat::kFloat32);
  at::globalContext().setFloat32MatmulPrecision("high");
  EXPECT_EQ(matrix_format(at::kFloat), MatrixFormat::kTensorFloat32);
  at::globalContext().setFloat32MatmulPrecision(before == at::Float32MatmulPrecision::HIGHEST ? "highest" : "high");
  EXPECT_EQ(matrix_format(at::kBFloat16), MatrixFormat::kHalf);
  EXPECT_EQ(matrix_format(at::kDouble), MatrixFormat::kFloat64);
}

}  // namespace
}  // namespace levin
