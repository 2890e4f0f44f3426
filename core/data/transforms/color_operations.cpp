#include <levin/core/data/transforms/color_operations.h>

#include <levin/core/base/error.h>
#include <levin/core/data/transforms/image_operations.h>

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace levin::data::operations {

namespace {

double largest(const at::Tensor& image) { return image.is_floating_point() ? 1 : 255; }

void require_colours(const at::Tensor& image) {
  if (image.size(0) != 1 && image.size(0) != 3)
    throw Error("data", fmt::format("colours are changed of images of 1 or 3 channels; got {}", image.size(0)));
}

/// The weighted mean, before it is rounded to the image's type.
at::Tensor luminance(const at::Tensor& image) {
  return image[0].mul(0.2989).add_(image[1], 0.587).add_(image[2], 0.114).unsqueeze(0);
}

at::Tensor whole_luminance(const at::Tensor& image) {
  at::Tensor grey = luminance(image);
  return image.is_floating_point() ? grey : grey.floor_();
}

at::Tensor blend(const at::Tensor& image, const at::Tensor& other, double ratio) {
  at::Tensor mixed = image.mul(ratio).add_(other, 1 - ratio).clamp_(0, largest(image));
  return image.is_floating_point() ? mixed : mixed.to(image.scalar_type());
}

at::Tensor rgb_to_hsv(const at::Tensor& image) {
  const at::Tensor red = image[0];
  const at::Tensor green = image[1];
  const auto [low, high] = image.aminmax(0, false);
  const at::Tensor grey = high == low;
  const at::Tensor range = high - low;
  const at::Tensor ones = at::ones_like(high);
  const at::Tensor saturation = range / at::where(grey, ones, high);
  const at::Tensor distance = (high.unsqueeze(0) - image) / at::where(grey, ones, range).unsqueeze_(0);
  const at::Tensor r = distance[0];
  const at::Tensor g = distance[1];
  const at::Tensor b = distance[2];
  const at::Tensor not_red = high != red;
  const at::Tensor is_green = high == green;
  const at::Tensor hue_green = r.add(2).sub_(b).mul_(is_green.logical_and(not_red));
  at::Tensor hue = b.sub(g).mul_(not_red.logical_not());
  const at::Tensor hue_blue = g.add(4).sub_(r).mul_(not_red.logical_and(is_green.logical_not()));
  hue.add_(hue_green).add_(hue_blue);
  hue = hue.mul_(1.0 / 6).add_(1).fmod_(1);
  return at::stack({hue, saturation, high}, 0);
}

at::Tensor hsv_to_rgb(const at::Tensor& image) {
  const at::Tensor saturation = image[1];
  const at::Tensor value = image[2];
  const at::Tensor sixth = image[0].mul(6);
  const at::Tensor whole = at::floor(sixth);
  const at::Tensor rest = sixth.sub(whole);
  const at::Tensor sector = whole.to(at::kInt).remainder_(6).to(at::kLong);
  const at::Tensor product = saturation * rest;
  const at::Tensor pale = 1 - saturation;
  const at::Tensor q = (1 - product).mul_(value).clamp_(0, 1);
  const at::Tensor t = product.add(pale).mul_(value).clamp_(0, 1);
  const at::Tensor p = pale.mul(value).clamp_(0, 1);
  const at::Tensor choices = at::stack({value, p, q, t}, 0);
  const at::Tensor table =
      at::tensor(std::vector<int64_t>{0, 2, 1, 1, 3, 0, 3, 0, 0, 2, 1, 1, 1, 1, 3, 0, 0, 2}, at::kLong).view({3, 6});
  const at::Tensor chosen = table.index_select(1, sector.flatten()).view({3, image.size(1), image.size(2)});
  return choices.gather(0, chosen);
}

}  // namespace

at::Tensor rgb_to_grayscale(const at::Tensor& image, int64_t channels) {
  require_colours(image);
  if (image.size(0) == 1) return image.expand({channels, image.size(1), image.size(2)});
  return luminance(image).to(image.scalar_type()).expand({channels, image.size(1), image.size(2)});
}

at::Tensor adjust_brightness(const at::Tensor& image, double factor) {
  require_colours(image);
  const at::Tensor changed = image.mul(factor).clamp_(0, largest(image));
  return image.is_floating_point() ? changed : changed.to(image.scalar_type());
}

at::Tensor adjust_contrast(const at::Tensor& image, double factor) {
  require_colours(image);
  const at::Tensor grey = image.size(0) == 3          ? whole_luminance(image)
                          : image.is_floating_point() ? image
                                                      : image.to(at::kFloat);
  return blend(image, at::mean(grey, {0, 1, 2}, /*keepdim=*/true), factor);
}

at::Tensor adjust_saturation(const at::Tensor& image, double factor) {
  require_colours(image);
  return image.size(0) == 1 ? image : blend(image, whole_luminance(image), factor);
}

at::Tensor adjust_hue(const at::Tensor& image, double factor) {
  require_colours(image);
  if (image.size(0) == 1) return image;
  at::Tensor hsv = rgb_to_hsv(to_dtype(image, at::kFloat));
  hsv.select(0, 0).add_(factor).remainder_(1);
  return to_dtype(hsv_to_rgb(hsv), image.scalar_type());
}

at::Tensor adjust_sharpness(const at::Tensor& image, double factor) {
  require_colours(image);
  if (image.size(1) <= 2 || image.size(2) <= 2) return image;
  const bool floating = image.is_floating_point();
  const at::ScalarType type = floating ? image.scalar_type() : at::kFloat;
  at::Tensor kernel = at::full({3, 3}, 1.0 / 13, type);
  kernel[1][1] = 5.0 / 13;
  at::Tensor output = image.to(type, /*non_blocking=*/false, /*copy=*/true).contiguous();
  at::Tensor blurred = filter(output, kernel);
  if (!floating) blurred.round_();
  at::Tensor inner = output.narrow(1, 1, image.size(1) - 2).narrow(2, 1, image.size(2) - 2);
  inner.add_(blurred.sub_(inner), 1 - factor);
  output.clamp_(0, largest(image));
  return floating ? output : output.to(image.scalar_type());
}

at::Tensor posterize(const at::Tensor& image, int64_t bits) {
  if (image.is_floating_point()) {
    const auto levels = static_cast<double>(int64_t{1} << bits);
    return image.mul(levels).floor_().clamp_(0, levels - 1).mul_(1 / levels);
  }
  if (bits >= 8) return image;
  return image.bitwise_and(static_cast<int64_t>(((1 << bits) - 1) << (8 - bits)));
}

at::Tensor solarize(const at::Tensor& image, double threshold) {
  return at::where(image >= threshold, invert(image), image);
}

at::Tensor autocontrast(const at::Tensor& image) {
  require_colours(image);
  const at::Tensor values = image.is_floating_point() ? image : image.to(at::kFloat);
  const std::array<int64_t, 2> plane = {1, 2};
  const at::Tensor low = values.amin(plane, true);
  const at::Tensor high = values.amax(plane, true);
  const at::Tensor flat = high == low;
  const at::Tensor scale = high.sub(low).mul_(1 / largest(image)).masked_fill_(flat, 1);
  return values.sub(low.masked_fill(flat, 0)).div_(scale).clamp_(0, largest(image)).to(image.scalar_type());
}

at::Tensor equalize(const at::Tensor& image) {
  const at::Tensor bytes = to_dtype(image, at::kByte).contiguous();
  at::Tensor output = at::empty_like(bytes);
  const int64_t count = bytes.size(1) * bytes.size(2);
  for (int64_t channel = 0; channel < bytes.size(0); ++channel) {
    const auto* input = bytes.const_data_ptr<uint8_t>() + channel * count;
    auto* result = output.mutable_data_ptr<uint8_t>() + channel * count;
    std::array<int64_t, 256> histogram = {};
    for (int64_t i = 0; i < count; ++i) ++histogram[input[i]];
    // The brightest value that occurs does not count, as in Pillow.
    size_t brightest = 255;
    while (brightest > 0 && histogram[brightest] == 0) --brightest;
    const int64_t step = (count - histogram[brightest]) / 255;
    std::array<uint8_t, 256> table = {};
    int64_t sum = 0;
    for (size_t value = 0; value < 256; ++value) {
      if (step == 0) {
        table[value] = static_cast<uint8_t>(value);
        continue;
      }
      if (value > 0) table[value] = static_cast<uint8_t>(std::min<int64_t>(255, (sum + step / 2) / step));
      sum += histogram[value];
    }
    for (int64_t i = 0; i < count; ++i) result[i] = table[input[i]];
  }
  return to_dtype(output, image.scalar_type());
}

at::Tensor invert(const at::Tensor& image) { return image.is_floating_point() ? 1 - image : image.bitwise_not(); }

}  // namespace levin::data::operations
