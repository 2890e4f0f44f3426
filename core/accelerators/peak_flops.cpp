#include <levin/core/accelerators/peak_flops.h>

#include <ATen/Context.h>

#include <string>

namespace levin {
namespace {

/// 10^12 operations a second without sparsity; 0 where the chip has no such unit or the maker gives no rate. Half is
/// with sums in float32, which GeForce cards compute at half the rate of sums in float16.
struct Peak {
  std::string_view name;  ///< in the driver's name
  double float64, float32, tensor_float32, half;
};

/// The first whose name fits counts: the longer names come first. Sources:
/// - data sheets of NVIDIA: "HGX B200" (2025; an eighth of the board), "H200" (2024), "H100" (2023), "A100" (2021),
///   "A10" (2021), "L40S", "L4" (2023), "V100", "V100S" (2020), "T4" (2019);
/// - appendices of the white papers "NVIDIA RTX Blackwell", "NVIDIA Ada", "NVIDIA Ampere GA102" for GeForce cards.
constexpr Peak kPeaks[] = {
    {"B200", 37, 75, 1125, 2250},          {"H200 NVL", 60, 60, 417.5, 835.5},
    {"H200", 66.9, 66.9, 494.7, 989.4},    {"H100 PCIe", 51.2, 51.2, 378, 756},
    {"H100 NVL", 60, 60, 417.5, 835.5},    {"H100", 66.9, 66.9, 494.7, 989.4},
    {"A100", 19.5, 19.5, 156, 312},        {"A10 ", 0, 31.2, 62.5, 125},
    {"L40S", 0, 91.6, 183, 362},           {"L4 ", 0, 30.3, 60, 121},
    {"V100S", 8.2, 16.4, 0, 130},          {"V100-PCIE", 7, 14, 0, 112},
    {"V100-SXM", 7.8, 15.7, 0, 125},       {"T4 ", 0, 8.1, 0, 65},
    {"RTX 5090 ", 0, 104.8, 104.8, 209.5}, {"RTX 5080 ", 0, 56.3, 56.3, 112.6},
    {"RTX 5070 Ti ", 0, 43.9, 43.9, 87.9}, {"RTX 5070 ", 0, 30.9, 30.9, 61.7},
    {"RTX 4090 ", 0, 82.6, 82.6, 165.2},   {"RTX 4080 ", 0, 48.7, 48.7, 97.5},
    {"RTX 4070 Ti ", 0, 40.1, 40.1, 80.2}, {"RTX 3090 Ti ", 0, 40, 40, 80},
    {"RTX 3090 ", 0, 35.6, 35.6, 71},      {"RTX 3080 ", 0, 29.8, 29.8, 59.5},
    {"RTX 3070 ", 0, 20.3, 20.3, 40.6},
};

}  // namespace

MatrixFormat matrix_format(at::ScalarType type) {
  if (type == at::kHalf || type == at::kBFloat16) return MatrixFormat::kHalf;
  if (type == at::kDouble) return MatrixFormat::kFloat64;
  return at::globalContext().float32MatmulPrecision() == at::Float32MatmulPrecision::HIGHEST
             ? MatrixFormat::kFloat32
             : MatrixFormat::kTensorFloat32;
}

const char* to_string(MatrixFormat format) {
  switch (format) {
    case MatrixFormat::kFloat64:
      return "float64";
    case MatrixFormat::kFloat32:
      return "float32";
    case MatrixFormat::kTensorFloat32:
      return "TensorFloat32";
    case MatrixFormat::kHalf:
      return "16 bits";
  }
  return "";
}

std::optional<double> peak_tflops(std::string_view device_name, MatrixFormat format) {
  // The end of a name tells "A10" from "A100" and "A10G", and "RTX 4080" from its laptop and Super editions.
  const std::string name = std::string(device_name) + " ";
  // A MIG instance is a part of a GPU.
  for (const char* other : {"Laptop", "SUPER", " MIG ", "GB200"})
    if (name.find(other) != name.npos) return {};
  for (const Peak& peak : kPeaks) {
    // "RTX 3080 " ends the name of that card, but not "RTX 3080 Ti ".
    if (peak.name.ends_with(' ') ? !name.ends_with(peak.name) : name.find(peak.name) == name.npos) continue;
    double rate = 0;
    switch (format) {
      case MatrixFormat::kFloat64:
        rate = peak.float64;
        break;
      case MatrixFormat::kTensorFloat32:
        // Cards without it compute float32 as ever.
        rate = peak.tensor_float32 > 0 ? peak.tensor_float32 : peak.float32;
        break;
      case MatrixFormat::kFloat32:
        rate = peak.float32;
        break;
      case MatrixFormat::kHalf:
        rate = peak.half;
        break;
    }
    return rate > 0 ? std::optional(rate) : std::nullopt;
  }
  return {};
}

}  // namespace levin
