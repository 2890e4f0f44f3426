#pragma once

#include <levin/core/data/images/image_format.h>

#include <cstdint>
#include <string_view>

namespace levin::data {

/// Decodes a PNG file. Throws std::runtime_error saying what is wrong with the file,
/// without its name.
DecodedImage decode_png(std::string_view bytes, int64_t max_pixels);

}  // namespace levin::data
