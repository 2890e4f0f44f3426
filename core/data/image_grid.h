#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace levin {

struct GridOptions {
  int64_t images_per_row = 8;
  int64_t padding = 2;     ///< pixels around and between the images
  double pad_value = 0;    ///< value of those pixels, on the grid's scale
  bool normalize = false;  ///< shifts and scales all values together to 0...1
  /// Values that become 0 and 1; unset: the smallest and the largest
  std::optional<std::pair<double, double>> value_range = {};
  bool scale_each = false;  ///< normalises each image by itself
};

/// Lays out images [count, channels, height, width] row by row in one image [channels, height, width] of their type
/// (floating with `normalize`), as torchvision.utils.make_grid, but keeps the number of channels. Throws levin::Error
/// when `images` is of another shape or empty.
at::Tensor make_grid(const at::Tensor& images, const GridOptions& options = {});

}  // namespace levin
