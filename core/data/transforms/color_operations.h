#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Changes of colours of images, uint8 or floating [1 or 3, height, width] on the CPU, with the values of torchvision's
/// functions of the same names for tensors, to the bit. A factor of 1 changes nothing.
namespace levin::data::operations {

/// Returns the weighted mean of the colours, in 1 or 3 equal channels.
at::Tensor rgb_to_grayscale(const at::Tensor& image, int64_t channels);
at::Tensor adjust_brightness(const at::Tensor& image, double factor);
at::Tensor adjust_contrast(const at::Tensor& image, double factor);
at::Tensor adjust_saturation(const at::Tensor& image, double factor);
/// Turns the colours by a part of the whole circle, -0.5 to 0.5; 0 changes nothing.
at::Tensor adjust_hue(const at::Tensor& image, double factor);
at::Tensor adjust_sharpness(const at::Tensor& image, double factor);
/// Keeps so many high bits.
at::Tensor posterize(const at::Tensor& image, int64_t bits);
/// Inverts the values from `threshold` on, which is on the image's own scale.
at::Tensor solarize(const at::Tensor& image, double threshold);
at::Tensor autocontrast(const at::Tensor& image);
at::Tensor equalize(const at::Tensor& image);
at::Tensor invert(const at::Tensor& image);

}  // namespace levin::data::operations
