#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace levin {

struct GridOptions {
  int64_t images_per_row = 8;
  int64_t padding = 2;     ///< pixels around and between the images
  double pad_value = 0;    ///< of those pixels, in the grid's own units
  bool normalize = false;  ///< shifts and scales all values together to 0...1
  /// What becomes 0 and 1; unset: smallest and largest value
  std::optional<std::pair<double, double>> value_range = {};
  bool scale_each = false;  ///< normalises each image by itself
};

/// One image of many, row by row, as torchvision.utils.make_grid: [channels, height, width] of images
/// [count, channels, height, width], of their type (floating with `normalize`). Channels stay as many as they are.
/// Throws levin::Error when `images` is of another shape or empty.
at::Tensor make_grid(const at::Tensor& images, const GridOptions& options = {});

}  // namespace levin
