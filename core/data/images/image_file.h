#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace levin::data {

/// Most pixels that an image may claim to have, unless an option says otherwise: what Pillow refuses to exceed.
inline constexpr int64_t kMaxImagePixels = 178'956'970;

/// Decodes a JPEG, PNG or WebP file that is in memory to RGB, uint8 [3, height, width], turned as its EXIF orientation
/// says: the bytes that Pillow gives. Grey, CMYK, palettes and transparency become RGB as with Pillow's convert("RGB");
/// of 16 bits the high byte is kept, for grey, too, which Pillow cuts off at 255. The memory is channels last. Throws
/// levin::Error, led by `name`, when the file is of another format, broken or cut short, or has more than `max_pixels`,
/// which is found out before memory is allocated for them.
at::Tensor decode_image(std::string_view bytes, const std::string& name, int64_t max_pixels = kMaxImagePixels);

/// Reads and decodes an image file. Throws levin::Error, also when it cannot be read.
at::Tensor read_image(const std::string& path, int64_t max_pixels = kMaxImagePixels);

}  // namespace levin::data
