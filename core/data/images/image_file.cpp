#include <levin/core/data/images/image_file.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/data/fetch_times.h>
#include <levin/core/data/images/jpeg.h>
#include <levin/core/data/images/png.h>
#include <levin/core/data/images/webp.h>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>

namespace levin::data {

namespace {

DecodedImage decode_any(std::string_view bytes, int64_t max_pixels) {
  if (bytes.starts_with("\xff\xd8\xff")) return decode_jpeg(bytes, max_pixels);
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return decode_png(bytes, max_pixels);
  if (bytes.starts_with("RIFF") && bytes.substr(0, 12).ends_with("WEBP")) return decode_webp(bytes, max_pixels);
  throw std::runtime_error(bytes.empty() ? "the file is empty" : "this is no image; valid: JPEG, PNG or WebP");
}

/// Turns pixels [height, width, 3] as EXIF says: 2 mirrored, 3 upside down, 4 both, 5 to 8 the same with rows and
/// columns exchanged.
at::Tensor upright(const at::Tensor& pixels, int64_t orientation) {
  switch (orientation) {
    case 2:
      return pixels.flip({1});
    case 3:
      return pixels.flip({0, 1});
    case 4:
      return pixels.flip({0});
    case 5:
      return pixels.transpose(0, 1).contiguous();
    case 6:
      return pixels.transpose(0, 1).flip({1}).contiguous();
    case 7:
      return pixels.transpose(0, 1).flip({0, 1}).contiguous();
    case 8:
      return pixels.transpose(0, 1).flip({0}).contiguous();
    default:
      return pixels;
  }
}

std::pair<std::unique_ptr<char[]>, size_t> read_file(const std::string& path) {
  const FetchPart part("read");
  const auto fail = [&] {
    throw Error("data", fmt::format("cannot read the image {}: {}", path, std::strerror(errno)));
  };
  const Descriptor file = open_regular_file(path, "data");
  struct stat status {};
  if (fstat(file.number(), &status) != 0) fail();
  const auto size = static_cast<size_t>(status.st_size);
  std::unique_ptr<char[]> bytes(new char[size]);  // not a string, whose bytes would be set to zero first
  size_t filled = 0;
  while (filled < size) {
    const ssize_t count = read(file.number(), bytes.get() + filled, size - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail();
    if (count == 0) break;
    filled += static_cast<size_t>(count);
  }
  return {std::move(bytes), filled};
}

}  // namespace

at::Tensor decode_image(std::string_view bytes, const std::string& name, int64_t max_pixels) {
  try {
    const FetchPart part("decode");
    const DecodedImage image = decode_any(bytes, max_pixels);
    return upright(image.pixels, image.orientation).permute({2, 0, 1});
  } catch (const std::runtime_error& error) {
    throw Error("data", fmt::format("cannot read the image {}: {}", name, error.what()));
  }
}

at::Tensor read_image(const std::string& path, int64_t max_pixels) {
  const auto [bytes, size] = read_file(path);
  return decode_image({bytes.get(), size}, path, max_pixels);
}

}  // namespace levin::data
