#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace levin {

/// A PNG file's bytes (ISO/IEC 15948), of an image as `image_bytes` makes them.
std::string encode_png(const at::Tensor& image);

}  // namespace levin
