#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin::data {

/// Most pixels by which augmentation shifts images of 32 x 32.
inline constexpr int64_t kCifarShift = 4;

/// What the records of a CIFAR data set's binary files have before their 3072 bytes of pixels.
struct CifarFormat {
  const char* name = "";
  std::vector<int64_t> num_classes = {};  ///< of each label, which is a byte
  const char* folder = "";                ///< that the data set unpacks to
};

/// Reads the records of a file: uint8 [N, labels + 3072]. Throws levin::Error when it is missing, truncated or has a
/// label that is no class.
at::Tensor read_cifar_records(const std::string& folder, const std::string& file, const CifarFormat& format);

}  // namespace levin::data
