#pragma once

#include <ATen/core/Tensor.h>

namespace levin {

/// Converts an image to bytes: uint8 [channels, height, width], contiguous, on the CPU. `image` is uint8 or floating,
/// then with values between 0 and 1 (others are clamped, NaN becomes 0), and has 1 (grey), 3 (RGB) or 4 (RGBA)
/// channels. Throws levin::Error naming shape and type of anything else.
at::Tensor image_bytes(const at::Tensor& image);

}  // namespace levin
