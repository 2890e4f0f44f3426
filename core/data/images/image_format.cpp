#include <levin/core/data/images/image_format.h>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <stdexcept>

namespace levin::data {

namespace {

uint32_t number_at(std::string_view data, size_t at, size_t bytes, bool big_endian) {
  uint32_t value = 0;
  for (size_t i = 0; i < bytes; ++i)
    value |= static_cast<uint32_t>(static_cast<uint8_t>(data[at + i])) << (8 * (big_endian ? bytes - 1 - i : i));
  return value;
}

}  // namespace

at::Tensor allocate_pixels(int64_t height, int64_t width, int64_t max_pixels) {
  if (height < 1 || width < 1) throw std::runtime_error(fmt::format("its size is {} x {} pixels", width, height));
  if (height > max_pixels / width)
    throw std::runtime_error(
        fmt::format("it claims to have {} x {} pixels; valid: at most {} pixels; hint: set "
                    "max_pixels where such images are meant to be read",
                    width, height, max_pixels));
  return at::empty({height, width, 3}, at::kByte);
}

int64_t exif_orientation(std::string_view exif) {
  constexpr uint32_t kOrientation = 0x0112;
  constexpr size_t kEntryBytes = 12;
  if (exif.size() < 8) return 1;
  const bool big_endian = exif.starts_with("MM");
  if (!big_endian && !exif.starts_with("II")) return 1;
  const size_t directory = number_at(exif, 4, 4, big_endian);
  if (directory > exif.size() - 2) return 1;
  const size_t count = number_at(exif, directory, 2, big_endian);
  for (size_t i = 0; i < count; ++i) {
    const size_t entry = directory + 2 + i * kEntryBytes;
    if (entry + kEntryBytes > exif.size()) return 1;
    if (number_at(exif, entry, 2, big_endian) != kOrientation) continue;
    const uint32_t value = number_at(exif, entry + 8, 2, big_endian);
    return value >= 1 && value <= 8 ? value : 1;
  }
  return 1;
}

}  // namespace levin::data
