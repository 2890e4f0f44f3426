#pragma once

#include <levin/core/data/images/image_format.h>

#include <cstdint>
#include <string_view>

namespace levin::data {

/// Decodes a WebP file; of an animation the first picture. Throws std::runtime_error saying what is wrong with the
/// file, without its name.
DecodedImage decode_webp(std::string_view bytes, int64_t max_pixels);

}  // namespace levin::data
