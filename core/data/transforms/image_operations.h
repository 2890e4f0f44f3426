#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

/// What the transforms do to an image once their random numbers are drawn. An image is uint8 or floating [channels,
/// height, width] on the CPU. Values are those of torchvision's functions of the same names for tensors, to the bit.
namespace levin::data::operations {

/// How values between pixels are found.
enum class Interpolation { kNearest, kNearestExact, kBilinear, kBicubic };
/// What added pixels are: a given value, the nearest pixel, or the image mirrored without or with its border.
enum class PaddingMode { kConstant, kEdge, kReflect, kSymmetric };

/// Value of pixels that have none: one for all channels or one for each. Nothing: zero, and for rotations and affine
/// maps no blending with it at the border.
using Fill = std::optional<std::vector<double>>;

/// Size of an image in pixels.
struct Size {
  int64_t height = 0;
  int64_t width = 0;
  bool operator==(const Size& other) const = default;
};

/// Pixels to add at each side.
struct Padding {
  int64_t left = 0;
  int64_t top = 0;
  int64_t right = 0;
  int64_t bottom = 0;
};

Size size_of(const at::Tensor& image);

/// Returns the size in which the shorter side is `shorter`, and the longer at most `max_size`.
Size size_of_shorter_side(const Size& size, int64_t shorter, std::optional<int64_t> max_size = {});
/// Resizes; a smaller bilinear or bicubic image is made of weighted means with `antialias`.
at::Tensor resize(const at::Tensor& image, const Size& size, Interpolation interpolation = Interpolation::kBilinear,
                  bool antialias = true);
/// Returns a view of a part that lies inside of the image.
at::Tensor crop(const at::Tensor& image, int64_t top, int64_t left, const Size& size);
/// Crops the middle; an image that is smaller is padded with zeros.
at::Tensor center_crop(const at::Tensor& image, const Size& size);
at::Tensor pad(const at::Tensor& image, const Padding& padding, const Fill& fill = {},
               PaddingMode mode = PaddingMode::kConstant);
at::Tensor horizontal_flip(const at::Tensor& image);
at::Tensor vertical_flip(const at::Tensor& image);

/// A rotation about the center with scale and shear, followed by a shift.
struct AffineMap {
  double angle = 0;                                  ///< degrees, clockwise
  std::array<double, 2> translate = {};              ///< pixels to the right and down
  double scale = 1;                                  ///< above 0
  std::array<double, 2> shear = {};                  ///< degrees along x and along y
  std::optional<std::array<double, 2>> center = {};  ///< x and y in pixels; unset: the middle
};
/// Maps the image, keeping its size. Only kNearest and kBilinear.
at::Tensor affine(const at::Tensor& image, const AffineMap& map, Interpolation interpolation, const Fill& fill);
/// Rotates by degrees against the clock. `expand`: makes the image large enough for all of it. Only kNearest and
/// kBilinear.
at::Tensor rotate(const at::Tensor& image, double angle, Interpolation interpolation, bool expand,
                  const std::optional<std::array<double, 2>>& center, const Fill& fill);

/// Returns sums of neighbours, weighted by `kernel` [height, width], of each channel of a floating image; smaller than
/// it.
at::Tensor filter(const at::Tensor& image, const at::Tensor& kernel);
at::Tensor gaussian_blur(const at::Tensor& image, std::array<int64_t, 2> kernel_size, std::array<double, 2> sigma);
/// Returns a copy whose rectangle has the values of `value`, which is broadcast.
at::Tensor erase(const at::Tensor& image, int64_t top, int64_t left, const Size& size, const at::Tensor& value);

/// Converts between uint8 with values 0...255 and floating types with values 0...1.
at::Tensor to_dtype(const at::Tensor& image, at::ScalarType type);
/// Returns (image - mean) / std for each channel, float [channels, height, width]; bytes are first brought to 0...1.
at::Tensor normalize(const at::Tensor& image, const std::vector<double>& mean, const std::vector<double>& std);

}  // namespace levin::data::operations
