// Images are decoded to the bytes that Pillow gives, and broken ones are refused.

#include <levin/core/data/images/image_file.h>

#include <levin/core/base/error.h>

#include "../support/memory_growth.h"
#include "photographs.h"
#include "temporary_folder.h"
#include "tests/support/tree.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/torch.h>
#include <zlib.h>

#include <fstream>
#include <sstream>
#include <string>

namespace levin::data {
namespace {

/// A folder of images that Pillow wrote; nothing where Pillow or the photographs are missing.
bool make_images(const TemporaryFolder& folder, size_t num_photographs = 3) {
  auto photographs = testing::photographs();
  if (photographs.empty()) return false;
  photographs.resize(num_photographs);
  std::vector<std::string> words{testing::torch_python(), testing::source_path("tests/data/make_images.py"),
                                 folder.path()};
  for (const auto& path : photographs) words.push_back(path);
  const auto result = testing::run_program(words);
  EXPECT_EQ(result.status, 0) << result.err;
  return result.status == 0;
}

std::string decode_error(const std::string& bytes, int64_t max_pixels = kMaxImagePixels) {
  try {
    decode_image(bytes, "a.jpg", max_pixels);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ImageFile, EveryKindIsDecodedToTheBytesThatPillowGives) {
  const TemporaryFolder folder;
  if (!make_images(folder))
    GTEST_SKIP() << "no Pillow or no scikit-image; hint: scripts/bootstrap --with-test-packages";
  std::istringstream lines(testing::read_text(folder.path("list.txt")));
  std::string name;
  int64_t width = 0;
  int64_t height = 0;
  int count = 0;
  while (lines >> name >> width >> height) {
    std::string bytes = testing::read_text(folder.path(name + ".rgb"));
    const auto expected = torch::from_blob(bytes.data(), {height, width, 3}, torch::kByte).permute({2, 0, 1});
    const auto image = read_image(folder.path(name));
    ASSERT_EQ(image.sizes(), expected.sizes()) << name;
    const auto difference = (image.to(torch::kInt) - expected.to(torch::kInt)).abs();
    EXPECT_EQ(difference.max().item<int>(), 0) << name << ": " << (difference > 0).sum().item<int64_t>() << " values";
    ++count;
  }
  EXPECT_GT(count, 90);
}

TEST(ImageFile, FilesThatAreCutShortAreRefused) {
  const TemporaryFolder folder;
  if (!make_images(folder, 1)) GTEST_SKIP() << "no Pillow or no scikit-image";
  for (const std::string name : {"jpeg_0_2.jpg", "progressive_0.jpg", "cmyk_0.jpg", "rgb_0.png", "palette_0.png",
                                 "lossy_0.webp", "lossless_0.webp", "animated_0.webp"}) {
    const std::string bytes = testing::read_text(folder.path(name));
    EXPECT_EQ(decode_error(bytes), "") << name;
    for (const double part : {0.0, 0.01, 0.1, 0.5, 0.9}) {
      const auto length = static_cast<size_t>(static_cast<double>(bytes.size()) * part);
      const std::string error = decode_error(bytes.substr(0, length));
      EXPECT_NE(error.find("cannot read the image a.jpg: "), std::string::npos) << name << " cut at " << part;
    }
  }
}

TEST(ImageFile, AnyByteMayBeWrong) {
  const TemporaryFolder folder;
  if (!make_images(folder, 1)) GTEST_SKIP() << "no Pillow or no scikit-image";
  uint64_t state = 1;
  for (const std::string name :
       {"jpeg_odd_0_2.jpg", "turned_0_6.jpg", "palette16_0.png", "turned_0.png", "turned_0.webp", "animated_0.webp"}) {
    const std::string bytes = testing::read_text(folder.path(name));
    for (int i = 0; i < 200; ++i) {
      std::string changed = bytes;
      for (int j = 0; j < 1 + i % 8; ++j) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        const size_t at =
            i % 2 == 0 ? (state >> 33) % bytes.size() : (state >> 33) % std::min<size_t>(bytes.size(), 200);
        changed[at] = static_cast<char>(state >> 20);
      }
      decode_error(changed, 1'000'000);  // an image or an error, but no crash
    }
  }
}

TEST(ImageFile, ThePixelsAreLimitedBeforeMemoryIsAllocated) {
  // The header of a PNG of 100,000 x 100,000 pixels.
  const std::string header(
      "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\x01\x86\xa0\0\x01\x86\xa0\x08\x02\0\0\0\x27\x30\x9c\x9f\0\0\0\0IDAT", 41);
  EXPECT_NE(decode_error(header).find("it claims to have 100000 x 100000 pixels; valid: at most 178956970"),
            std::string::npos)
      << decode_error(header);
  const TemporaryFolder folder;
  if (!make_images(folder, 1)) GTEST_SKIP() << "no Pillow or no scikit-image";
  for (const std::string name : {"rgb_0.png", "grey_0.jpg", "lossy_0.webp", "animated_0.webp"}) {
    const std::string limited = decode_error(testing::read_text(folder.path(name)), 211 * 143 - 1);
    EXPECT_NE(limited.find("it claims to have 211 x 143 pixels; valid: at most 30172 pixels; hint: set max_pixels"),
              std::string::npos)
        << limited;
    EXPECT_EQ(decode_error(testing::read_text(folder.path(name)), 211 * 143), "") << name;
  }
}

std::string png_chunk(const std::string& type, const std::string& content) {
  const auto number = [](uint32_t value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xff);
    return bytes;
  };
  const std::string checked = type + content;
  return number(static_cast<uint32_t>(content.size())) + checked +
         number(
             static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const unsigned char*>(checked.data()), checked.size())));
}

TEST(ImageFile, SmallFilesThatClaimManyPixelsTakeNoMemory) {
  const std::string empty("\x78\x9c\x03\0\0\0\0\x01", 8);   // what zlib makes of nothing
  const std::string high("\0\0\0\x01\x0a\xaa\xaa\xaa", 8);  // 1 x 178956970
  const std::string wide = high.substr(4) + high.substr(0, 4);
  for (const std::string& size : {high, wide})
    for (const char bits : {'\x01', '\x08'})
      for (const char interlaced : {'\0', '\x01'}) {
        const std::string png = "\x89PNG\r\n\x1a\n" +
                                png_chunk("IHDR", size + bits + std::string(3, '\0') + interlaced) +
                                png_chunk("IDAT", empty) + png_chunk("IEND", "");
        EXPECT_LT(png.size(), 70U);
        EXPECT_NE(decode_error(png).find("the file is cut short"), std::string::npos) << decode_error(png);
        EXPECT_LT(testing::memory_growth([&] { decode_error(png); }), 100) << "MiB";
      }
  // A progressive JPEG, for which the library would keep all coefficients.
  std::string jpeg = testing::read_text(testing::source_path("tests/fuzz/corpus/image/progressive.jpg"));
  ASSERT_EQ(decode_error(jpeg), "");
  const size_t frame = jpeg.find("\xff\xc2");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\x33\x33\x33\x33");  // 13107 x 13107
  EXPECT_NE(decode_error(jpeg).find("the file is cut short"), std::string::npos) << decode_error(jpeg);
  EXPECT_LT(testing::memory_growth([&] { decode_error(jpeg); }), 100) << "MiB";
}

TEST(ImageFile, JpegsOfManyScansAreRefused) {
  const std::string jpeg = testing::read_text(testing::source_path("tests/fuzz/corpus/image/progressive.jpg"));
  const size_t last = jpeg.rfind("\xff\xda");
  const size_t end = jpeg.rfind("\xff\xd9");
  ASSERT_LT(last, end);
  const auto with_scans = [&](int more) {
    std::string bytes = jpeg.substr(0, end);
    for (int i = 0; i < more; ++i) bytes += jpeg.substr(last, end - last);
    return bytes + jpeg.substr(end);
  };
  EXPECT_EQ(decode_error(with_scans(20)), "");
  EXPECT_NE(decode_error(with_scans(3000)).find("it is a broken JPEG: it has more than 100 scans"), std::string::npos)
      << decode_error(with_scans(3000));
}

TEST(ImageFile, PipesAreRefusedBeforeTheyAreOpened) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.path("a.png").c_str(), 0600), 0);
  std::string message;
  try {
    read_image(folder.path("a.png"));
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_NE(message.find("a.png: it is a pipe or a device"), std::string::npos) << message;
}

TEST(ImageFile, SaysWhatIsWrongWithAFile) {
  const TemporaryFolder folder;
  EXPECT_NE(decode_error("").find("cannot read the image a.jpg: the file is empty"), std::string::npos);
  EXPECT_NE(decode_error("GIF89a").find("this is no image; valid: JPEG, PNG or WebP"), std::string::npos);
  EXPECT_NE(decode_error("\xff\xd8\xff\xe0").find("a.jpg"), std::string::npos);
  EXPECT_THROW(read_image(folder.path("missing.jpg")), Error);
  EXPECT_THROW(read_image(folder.path()), Error);
}

}  // namespace
}  // namespace levin::data
