#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

namespace levin {

/// The number formats that matrix units have rates for.
enum class MatrixFormat { kFloat64, kFloat32, kTensorFloat32, kHalf };

/// What matrix products of tensors of a type are computed in: float32 is TensorFloat32 where LibTorch may use it (the
/// option float32_matmul_precision); half is float16 or bfloat16.
MatrixFormat matrix_format(at::ScalarType type);
const char* to_string(MatrixFormat format);

/// Dense matrix products a second, in 10^12 operations, of one GPU at its boost clock, as its maker publishes it.
/// Nothing where the name (as the driver gives it: "NVIDIA H100 80GB HBM3") or the format is not in the table.
std::optional<double> peak_tflops(std::string_view device_name, MatrixFormat format);

/// The name that the driver gives a device; "cpu" for the CPU.
std::string device_name(const at::Device& device);

}  // namespace levin
