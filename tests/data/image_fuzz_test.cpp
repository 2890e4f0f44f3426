// Decoders are given files with random faults: each is read or refused, and nothing crashes. ctest of the sanitizers'
// build runs it under the address sanitizer, too.

#include <levin/core/data/images/image_file.h>

#include <levin/core/base/error.h>
#include <levin/core/base/png.h>
#include <levin/core/data/generator.h>

#include "photographs.h"
#include "temporary_folder.h"
#include "tests/support/tree.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace levin::data {
namespace {

using Clock = std::chrono::steady_clock;

/// A file with up to eight faults: bytes changed, taken out, doubled or cut off, and parts of another file.
std::string damaged(std::string bytes, const std::string& other, Generator& generator) {
  const int64_t faults = 1 + generator.below(8);
  for (int64_t i = 0; i < faults && bytes.size() > 1; ++i) {
    const auto size = static_cast<int64_t>(bytes.size());
    // Headers have more that can go wrong than the rest.
    const auto at = static_cast<size_t>(generator.below(generator.below(2) == 0 ? std::min<int64_t>(size, 256) : size));
    const auto count = static_cast<size_t>(1 + generator.below(16));
    switch (generator.below(6)) {
      case 0:
        bytes[at] = static_cast<char>(generator.next());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << generator.below(8)));
        break;
      case 2:
        for (size_t k = at; k < std::min(bytes.size(), at + count); ++k)
          bytes[k] = generator.below(2) == 0 ? '\0' : '\xff';
        break;
      case 3:
        bytes.erase(at, count);
        break;
      case 4:
        bytes.insert(at, bytes.substr(at, count));
        break;
      default:
        if (generator.below(2) == 0)
          bytes.resize(at + 1);
        else if (other.size() > at)
          bytes.replace(at, count, other.substr(at, count));
    }
  }
  return bytes;
}

TEST(ImageDecoders, DamagedFilesAreReadOrRefused) {
  const TemporaryFolder folder;
  std::vector<std::string> files;
  const auto pixels = torch::arange(3 * 40 * 56).remainder(256).to(torch::kByte).view({3, 40, 56});
  files.push_back(encode_png(pixels));
  files.push_back(encode_png(pixels.narrow(0, 0, 1)));
  // Every kind that Pillow writes, where it is there.
  std::vector<std::string> arguments = {testing::torch_python(), testing::source_path("tests/data/make_images.py"),
                                        folder.path()};
  const std::string small = folder.write("small.png", encode_png(pixels));
  arguments.push_back(small);
  if (testing::run_program(arguments).status == 0)
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      if (const auto ending = entry.path().extension(); ending == ".jpg" || ending == ".png" || ending == ".webp")
        files.push_back(testing::read_text(entry.path().string()));

  constexpr auto kTime = std::chrono::seconds(2);
  constexpr int64_t kMostPixels = 1 << 22;
  const auto begin = Clock::now();
  int64_t read = 0;
  int64_t refused = 0;
  for (int64_t i = 0; i < 20'000 && (read == 0 || refused == 0 || Clock::now() - begin < kTime); ++i) {
    Generator generator(24, 0, i);
    const auto any = [&]() -> const std::string& {
      return files[static_cast<size_t>(generator.below(static_cast<int64_t>(files.size())))];
    };
    const std::string& file = any();
    const std::string bytes = damaged(file, any(), generator);
    try {
      const auto image = decode_image(bytes, "damaged", kMostPixels);
      ASSERT_EQ(image.dim(), 3);
      ASSERT_EQ(image.size(0), 3);
      ASSERT_LE(image.size(1) * image.size(2), kMostPixels);
      (void)image.sum().item<int64_t>();  // all of its memory can be read
      ++read;
    } catch (const Error& error) {
      ASSERT_EQ(std::string(error.what()).find("[data] cannot read the image damaged: "), 0U) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(read, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace levin::data
