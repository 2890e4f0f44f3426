#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace levin {

/// Encodes an image, as `image_bytes` makes them, as a PNG file (ISO/IEC 15948).
std::string encode_png(const at::Tensor& image);

}  // namespace levin
