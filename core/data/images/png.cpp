#include <levin/core/data/images/png.h>

#include <png.h>

#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

namespace levin::data {

namespace {

/// A reader whose errors are exceptions. The library leaves its functions by longjmp.
class PngReader {
 public:
  explicit PngReader(std::string_view bytes) : rest_(bytes) {
    png_ = png_create_read_struct(
        PNG_LIBPNG_VER_STRING, this,
        [](png_structp png, png_const_charp message) {
          auto& reader = *static_cast<PngReader*>(png_get_error_ptr(png));
          std::snprintf(reader.message_, sizeof reader.message_, "%s", message);
          std::longjmp(reader.place_, 1);
        },
        [](png_structp, png_const_charp) {});
    if (png_ == nullptr) throw std::runtime_error("libpng could not be started");
    info_ = png_create_info_struct(png_);
    if (info_ == nullptr) {
      png_destroy_read_struct(&png_, nullptr, nullptr);
      throw std::runtime_error("libpng could not be started");
    }
    png_set_read_fn(png_, this, [](png_structp png, png_bytep target, size_t count) {
      auto& reader = *static_cast<PngReader*>(png_get_io_ptr(png));
      if (count > reader.rest_.size()) png_error(png, "the file is cut short");
      std::memcpy(target, reader.rest_.data(), count);
      reader.rest_.remove_prefix(count);
    });
    // The number of pixels is limited by the caller.
    png_set_user_limits(png_, 0x7fffffff, 0x7fffffff);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  /// Runs calls of the library. `function` must hold nothing that needs a destructor.
  template <class Function>
  void run(const Function& function) {
    if (setjmp(place_) != 0) throw std::runtime_error(std::string("it is a broken PNG: ") + message_);
    function();
  }
  png_structp png() { return png_; }
  png_infop info() { return info_; }

 private:
  std::string_view rest_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf place_;
  char message_[200] = {};
};

}  // namespace

DecodedImage decode_png(std::string_view bytes, int64_t max_pixels) {
  PngReader reader(bytes);
  png_structp png = reader.png();
  png_infop info = reader.info();
  reader.run([&] { png_read_info(png, info); });
  DecodedImage image;
  const size_t height = png_get_image_height(png, info);
  const size_t width = png_get_image_width(png, info);
  image.pixels = allocate_pixels(static_cast<int64_t>(height), static_cast<int64_t>(width), max_pixels);
  // Deflate compresses by 1032 at most: memory is not filled for what the file cannot hold.
  const size_t bits = size_t{png_get_bit_depth(png, info)} * png_get_channels(png, info);
  if (height * width / 8 * bits / 1032 > bytes.size()) throw std::runtime_error("the file is cut short");
  auto* pixels = image.pixels.mutable_data_ptr<uint8_t>();

  size_t row_bytes = 0;
  int passes = 1;
  reader.run([&] {
    png_set_strip_16(png);
    png_set_palette_to_rgb(png);
    png_set_expand_gray_1_2_4_to_8(png);
    if ((png_get_color_type(png, info) & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(png);
    png_set_strip_alpha(png);
    passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    row_bytes = png_get_rowbytes(png, info);
  });
  if (row_bytes != width * 3) throw std::runtime_error("it is a PNG of an unknown kind");
  reader.run([&] {
    for (int pass = 0; pass < passes; ++pass)
      for (size_t y = 0; y < height; ++y) png_read_row(png, pixels + y * width * 3, nullptr);
    png_read_end(png, info);
  });
  png_bytep exif = nullptr;
  png_uint_32 exif_bytes = 0;
  if (png_get_eXIf_1(png, info, &exif_bytes, &exif) != 0)
    image.orientation = exif_orientation({reinterpret_cast<const char*>(exif), exif_bytes});
  return image;
}

}  // namespace levin::data
