#pragma once

#include "../data/idx_writer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>

namespace levin::testing {

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

/// The IDX files of `count` images of 28x28: class c is a bright bar at its own height, with some noise.
inline std::string tiny_images(int64_t count) {
  std::string pixels;
  uint32_t noise = 12345;
  for (int64_t image = 0; image < count; ++image)
    for (int64_t row = 0; row < 28; ++row)
      for (int64_t column = 0; column < 28; ++column) {
        noise = noise * 1664525u + 1013904223u;
        const int64_t bar = row / 2 - 2 == image % 10 ? 150 : 0;
        pixels.push_back(static_cast<char>(bar + (noise >> 24) % 100));
      }
  return idx_bytes({static_cast<uint32_t>(count), 28, 28}, pixels);
}

inline std::string tiny_labels(int64_t count) {
  std::string labels;
  for (int64_t image = 0; image < count; ++image) labels.push_back(static_cast<char>(image % 10));
  return idx_bytes({static_cast<uint32_t>(count)}, labels);
}

/// A data set in the form of Fashion-MNIST's, with as few images as a test wants.
inline void write_tiny_fashion(const std::string& folder, int64_t training, int64_t test) {
  std::filesystem::create_directories(folder);
  write_text(folder + "/train-images-idx3-ubyte", tiny_images(training));
  write_text(folder + "/train-labels-idx1-ubyte", tiny_labels(training));
  write_text(folder + "/t10k-images-idx3-ubyte", tiny_images(test));
  write_text(folder + "/t10k-labels-idx1-ubyte", tiny_labels(test));
}

/// A temporary folder that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = ::testing::TempDir() + "levin_integration_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder in " + ::testing::TempDir());
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace levin::testing
