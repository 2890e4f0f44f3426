#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace levin::data {

/// An image as its file has it, before it is turned upright.
struct DecodedImage {
  at::Tensor pixels = {};   ///< uint8 RGB [height, width, 3], contiguous
  int64_t orientation = 1;  ///< of EXIF, 1 to 8
};

/// Throws std::runtime_error when width * height is above `max_pixels`; otherwise returns uint8 [height, width, 3].
at::Tensor allocate_pixels(int64_t height, int64_t width, int64_t max_pixels);

/// Returns the orientation that EXIF data (a TIFF header and its first directory) has; 1 when it has none or is broken.
int64_t exif_orientation(std::string_view exif);

}  // namespace levin::data
