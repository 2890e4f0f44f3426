#include <levin/core/base/png.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>
#include <png.h>

#include <cstdint>

namespace levin {

std::string encode_png(const at::Tensor& image) {
  LEVIN_CHECK(image.scalar_type() == at::kByte && image.dim() == 3, "no image of bytes");
  const int64_t channels = image.size(0);
  const at::Tensor interleaved = image.permute({1, 2, 0}).contiguous();
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.height = static_cast<png_uint_32>(image.size(1));
  header.width = static_cast<png_uint_32>(image.size(2));
  header.format = channels == 1 ? PNG_FORMAT_GRAY : channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_RGBA;

  std::string bytes(PNG_IMAGE_PNG_SIZE_MAX(header), '\0');
  png_alloc_size_t size = bytes.size();
  if (png_image_write_to_memory(&header, bytes.data(), &size, /*convert_to_8_bit=*/0,
                                interleaved.const_data_ptr<uint8_t>(), /*row_stride=*/0, /*colormap=*/nullptr) == 0)
    throw Error("image", fmt::format("libpng could not encode an image: {}", header.message));
  bytes.resize(size);
  return bytes;
}

}  // namespace levin
