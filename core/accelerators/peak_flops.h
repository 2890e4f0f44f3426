#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

namespace levin {

/// Number formats in which GPUs' rates of matrix products are published.
enum class MatrixFormat { kFloat64, kFloat32, kTensorFloat32, kHalf };

/// Returns the format that computes matrix products of a tensor type: float32 is TensorFloat32 where LibTorch may use
/// it (the option float32_matmul_precision); half is float16 or bfloat16.
MatrixFormat matrix_format(at::ScalarType type);
const char* to_string(MatrixFormat format);

/// Returns the published rate of dense matrix products of one GPU at its boost clock, in 10^12 operations a second.
/// Nothing when the name (the driver's: "NVIDIA H100 80GB HBM3") or the format is not in the table.
std::optional<double> peak_tflops(std::string_view device_name, MatrixFormat format);

}  // namespace levin
