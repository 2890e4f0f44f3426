#include <levin/core/data/image_grid.h>

#include <levin/core/base/error.h>

#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>

namespace levin {
namespace {

at::Tensor normalized(const at::Tensor& values, const GridOptions& options) {
  // As torchvision: a range of no width must not divide by zero.
  constexpr double kSmallestWidth = 1e-5;
  const double low = options.value_range ? options.value_range->first : values.min().item<double>();
  const double high = options.value_range ? options.value_range->second : values.max().item<double>();
  return values.clamp(low, high).sub(low).div(std::max(high - low, kSmallestWidth));
}

}  // namespace

at::Tensor make_grid(const at::Tensor& images, const GridOptions& options) {
  if (!images.defined() || images.dim() != 4 || images.numel() == 0)
    throw Error("make_grid", fmt::format("images must be [count, channels, height, width], at least one; got {}",
                                         images.defined() ? c10::str(images.sizes()) : "an undefined tensor"));
  if (options.images_per_row < 1 || options.padding < 0)
    throw Error("make_grid", fmt::format("images_per_row is {} and padding {}; valid: at least 1, at least 0",
                                         options.images_per_row, options.padding));
  const at::NoGradGuard no_grad;
  at::Tensor source = images;
  if (options.normalize) {
    source = images.is_floating_point() ? images.clone() : images.to(at::kFloat);
    if (options.scale_each) {
      for (int64_t i = 0; i < source.size(0); ++i) source[i].copy_(normalized(source[i], options));
    } else {
      source = normalized(source, options);
    }
  }
  const int64_t count = source.size(0);
  const int64_t columns = std::min(options.images_per_row, count);
  const int64_t rows = (count + columns - 1) / columns;
  const int64_t height = source.size(2) + options.padding;
  const int64_t width = source.size(3) + options.padding;
  at::Tensor grid = at::full({source.size(1), rows * height + options.padding, columns * width + options.padding},
                             options.pad_value, source.options());
  for (int64_t i = 0; i < count; ++i)
    grid.narrow(1, i / columns * height + options.padding, source.size(2))
        .narrow(2, i % columns * width + options.padding, source.size(3))
        .copy_(source[i]);
  return grid;
}

}  // namespace levin
