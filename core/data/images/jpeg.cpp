#include <levin/core/data/images/jpeg.h>

#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <utility>

#include <jpeglib.h>

#include <jerror.h>

namespace levin::data {

namespace {

/// Each scan of a progressive JPEG goes over the whole image, and takes few bytes. Programs write up to some thirty.
constexpr int kMostScans = 100;

/// A decompressor whose errors are exceptions. The library leaves its functions by longjmp.
class JpegReader {
 public:
  explicit JpegReader(std::string_view bytes) {
    jpeg_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = [](j_common_ptr common) {
      auto& errors = *reinterpret_cast<Errors*>(common->err);
      errors.base.format_message(common, errors.message);
      std::longjmp(errors.place, 1);
    };
    errors_.base.emit_message = [](j_common_ptr common, int level) {
      auto& errors = *reinterpret_cast<Errors*>(common->err);
      if (level < 0 && errors.base.msg_code == JWRN_JPEG_EOF) errors.cut_short = true;
    };
    progress_.progress_monitor = [](j_common_ptr common) {
      if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number <= kMostScans) return;
      auto& errors = *reinterpret_cast<Errors*>(common->err);
      std::snprintf(errors.message, sizeof errors.message, "it has more than %d scans", kMostScans);
      std::longjmp(errors.place, 1);
    };
    run([&] {
      jpeg_create_decompress(&jpeg_);
      jpeg_.progress = &progress_;
      jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
      jpeg_save_markers(&jpeg_, JPEG_APP0 + 1, 0xffff);
    });
  }
  ~JpegReader() { jpeg_destroy_decompress(&jpeg_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  /// Runs calls of the library. `function` must hold nothing that needs a destructor.
  template <class Function>
  void run(const Function& function) {
    if (setjmp(errors_.place) != 0) throw std::runtime_error(std::string("it is a broken JPEG: ") + errors_.message);
    function();
  }
  void require_whole() const {
    if (errors_.cut_short) throw std::runtime_error("the file is cut short");
  }
  jpeg_decompress_struct& jpeg() { return jpeg_; }

 private:
  struct Errors {
    jpeg_error_mgr base;  // first, so that a pointer to it is one to the whole
    std::jmp_buf place;
    char message[JMSG_LENGTH_MAX];
    bool cut_short;
  };
  Errors errors_ = {};
  jpeg_progress_mgr progress_ = {};
  jpeg_decompress_struct jpeg_ = {};
};

int64_t orientation_of(const jpeg_decompress_struct& jpeg) {
  constexpr std::string_view kLead("Exif\0\0", 6);
  for (const jpeg_marker_struct* marker = jpeg.marker_list; marker != nullptr; marker = marker->next) {
    const std::string_view data(reinterpret_cast<const char*>(marker->data), marker->data_length);
    if (data.starts_with(kLead)) return exif_orientation(data.substr(kLead.size()));
  }
  return 1;
}

/// One product of two numbers 0...255 that stand for 0...1, rounded.
uint8_t product(uint32_t a, uint32_t b) {
  const uint32_t scaled = a * b + 128;
  return static_cast<uint8_t>(((scaled >> 8) + scaled) >> 8);
}

}  // namespace

DecodedImage decode_jpeg(std::string_view bytes, int64_t max_pixels) {
  JpegReader reader(bytes);
  jpeg_decompress_struct& jpeg = reader.jpeg();
  reader.run([&] { jpeg_read_header(&jpeg, TRUE); });
  DecodedImage image;
  image.orientation = orientation_of(jpeg);
  image.pixels = allocate_pixels(jpeg.image_height, jpeg.image_width, max_pixels);
  // Huffman's codes take a bit at least for each block of 64 pixels: memory is not filled for what the file cannot
  // hold.
  constexpr size_t kMostPixelsInByte = 512;
  if (jpeg.arith_code == 0 && size_t{jpeg.image_height} * jpeg.image_width / kMostPixelsInByte > bytes.size())
    throw std::runtime_error("the file is cut short");
  auto* pixels = image.pixels.mutable_data_ptr<uint8_t>();
  const size_t width = jpeg.image_width;

  if (jpeg.num_components != 4) {
    reader.run([&] {
      jpeg.out_color_space = JCS_RGB;
      jpeg_start_decompress(&jpeg);
      while (jpeg.output_scanline < jpeg.output_height) {
        JSAMPROW row = pixels + jpeg.output_scanline * width * 3;
        jpeg_read_scanlines(&jpeg, &row, 1);
      }
    });
  } else {
    // Files of four colours hold them inverted, as Adobe's programs write them.
    std::string line(width * 4, '\0');
    auto* colours = reinterpret_cast<JSAMPROW>(line.data());
    reader.run([&] {
      jpeg.out_color_space = JCS_CMYK;
      jpeg_start_decompress(&jpeg);
      while (jpeg.output_scanline < jpeg.output_height) {
        uint8_t* output = pixels + jpeg.output_scanline * width * 3;
        JSAMPROW row = colours;
        jpeg_read_scanlines(&jpeg, &row, 1);
        for (size_t x = 0; x < width; ++x) {
          const uint8_t white = colours[x * 4 + 3];
          for (size_t c = 0; c < 3; ++c) {
            const int value = white - product(255U - colours[x * 4 + c], white);
            output[x * 3 + c] = static_cast<uint8_t>(value < 0 ? 0 : value);
          }
        }
      }
    });
  }
  reader.require_whole();
  return image;
}

}  // namespace levin::data
