#include <levin/core/data/transforms/image_operations.h>

#include <levin/core/base/error.h>

#include <ATen/Functions.h>
#include <ATen/Version.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace levin::data::operations {

namespace {

/// The image as a batch of one. A channels-last image stays that for LibTorch, whose kernels for bytes are made for it.
at::Tensor as_batch(const at::Tensor& image) {
  at::Tensor batch = image.unsqueeze(0);
  if (batch.is_contiguous(at::MemoryFormat::ChannelsLast) && image.stride(0) == 1)
    batch = batch.as_strided(batch.sizes(), {image.numel(), batch.stride(1), batch.stride(2), batch.stride(3)});
  return batch;
}

/// Whether LibTorch's kernel for bytes is the one that torchvision takes on this processor.
bool resizes_bytes(Interpolation interpolation) {
  if (interpolation == Interpolation::kBicubic) return true;
  static const bool has_vectors = [] {
    const std::string capability = at::get_cpu_capability();
    return capability == "AVX2" || capability == "AVX512";
  }();
  return has_vectors;
}

at::Tensor interpolate(const at::Tensor& batch, const Size& size, Interpolation interpolation, bool antialias) {
  const std::array<int64_t, 2> target = {size.height, size.width};
  switch (interpolation) {
    case Interpolation::kNearest:
      return at::upsample_nearest2d(batch, target);
    case Interpolation::kNearestExact:
      return at::_upsample_nearest_exact2d(batch, target);
    case Interpolation::kBilinear:
      return antialias ? at::_upsample_bilinear2d_aa(batch, target, false)
                       : at::upsample_bilinear2d(batch, target, false);
    case Interpolation::kBicubic:
      return antialias ? at::_upsample_bicubic2d_aa(batch, target, false)
                       : at::upsample_bicubic2d(batch, target, false);
  }
  throw InternalError("unknown interpolation");
}

at::Tensor fill_tensor(const std::vector<double>& fill, const at::Tensor& image) {
  const auto count = static_cast<int64_t>(fill.size());
  if (count != 1 && count != image.size(0))
    throw ConfigError(
        fmt::format("fill must have one number, or one for each of the {} channels; got {}", image.size(0), count));
  return at::tensor(fill, at::kDouble).to(image.scalar_type()).view({count, 1, 1});
}

/// Positions in a row or column of `length` pixels for one that begins `before` earlier and ends `after` later.
at::Tensor padded_positions(int64_t before, int64_t length, int64_t after, PaddingMode mode) {
  at::Tensor positions = at::empty({std::max<int64_t>(0, before + length + after)}, at::kLong);
  auto* values = positions.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < positions.size(0); ++i) {
    int64_t at = i - before;
    if (mode == PaddingMode::kEdge) {
      at = std::clamp<int64_t>(at, 0, length - 1);
    } else if (mode == PaddingMode::kReflect) {
      at = at < 0 ? -at : at >= length ? 2 * (length - 1) - at : at;
    } else {
      at = at < 0 ? -at - 1 : at >= length ? 2 * length - 1 - at : at;
    }
    values[i] = at;
  }
  return positions;
}

double radians(double degrees) { return degrees * (std::numbers::pi / 180); }

using Matrix = std::array<double, 6>;

/// The map from places in the result to places in the image, both counted from the middle: the inverse of translation,
/// rotation, scale and shear about the center.
Matrix inverse_matrix(const std::array<double, 2>& center, double angle, const std::array<double, 2>& translate,
                      double scale, const std::array<double, 2>& shear) {
  const double rotation = radians(angle);
  const double shear_x = radians(shear[0]);
  const double shear_y = radians(shear[1]);
  const double a = std::cos(rotation - shear_y) / std::cos(shear_y);
  const double b = -(a * std::tan(shear_x) + std::sin(rotation));
  const double c = std::sin(rotation - shear_y) / std::cos(shear_y);
  const double d = std::cos(rotation) - c * std::tan(shear_x);
  const double x = center[0] + translate[0];
  const double y = center[1] + translate[1];
  Matrix matrix = {d / scale, -b / scale, 0, -c / scale, a / scale, 0};
  matrix[2] += center[0] - matrix[0] * x - matrix[1] * y;
  matrix[5] += center[1] - matrix[3] * x - matrix[4] * y;
  return matrix;
}

at::Tensor matrix_tensor(const Matrix& matrix, at::ScalarType type) {
  return at::tensor(std::vector<double>(matrix.begin(), matrix.end()), at::kDouble).to(type).view({1, 2, 3});
}

/// Places in the image, scaled to -1...1, for every pixel of a result of another size.
at::Tensor sampling_grid(const at::Tensor& theta, const Size& image, const Size& result) {
  const auto options = theta.options();
  at::Tensor base = at::empty({1, result.height, result.width, 3}, options);
  const auto width = static_cast<double>(result.width);
  const auto height = static_cast<double>(result.height);
  base.select(3, 0).copy_(at::linspace((1 - width) * 0.5, (width - 1) * 0.5, result.width, at::kFloat));
  base.select(3, 1).copy_(
      at::linspace((1 - height) * 0.5, (height - 1) * 0.5, result.height, at::kFloat).unsqueeze(-1));
  base.select(3, 2).fill_(1);
  const at::Tensor half =
      at::tensor(std::vector<double>{0.5 * static_cast<double>(image.width), 0.5 * static_cast<double>(image.height)},
                 at::kDouble)
          .to(theta.scalar_type());
  const at::Tensor scaled = theta.transpose(1, 2).div(half);
  return base.view({1, result.height * result.width, 3}).bmm(scaled).view({1, result.height, result.width, 2});
}

at::Tensor sample(const at::Tensor& image, const at::Tensor& grid, Interpolation interpolation, const Fill& fill) {
  if (interpolation != Interpolation::kNearest && interpolation != Interpolation::kBilinear)
    throw ConfigError("interpolation must be nearest or bilinear here");
  const bool nearest = interpolation == Interpolation::kNearest;
  const bool floating = image.scalar_type() == grid.scalar_type();
  at::Tensor values = (floating ? image : image.to(grid.scalar_type())).unsqueeze(0);
  // A further channel says where there are pixels.
  if (fill) values = at::cat({values, at::ones({1, 1, image.size(1), image.size(2)}, values.options())}, 1);
  values = at::grid_sampler(values, grid, nearest ? 1 : 0, /*padding_mode=*/0, /*align_corners=*/false);
  if (fill) {
    const at::Tensor mask = values.narrow(1, image.size(0), 1);
    at::Tensor colours = values.narrow(1, 0, image.size(0));
    const at::Tensor background = fill_tensor(*fill, colours[0]).unsqueeze(0);
    values = nearest ? at::where(mask < 0.5, background, colours) : colours.sub(background).mul_(mask).add_(background);
  }
  values = values.squeeze(0);
  return floating ? values : values.round_().to(image.scalar_type());
}

std::array<double, 2> from_middle(const std::optional<std::array<double, 2>>& center, const Size& size) {
  if (!center) return {0, 0};
  return {(*center)[0] - static_cast<double>(size.width) * 0.5, (*center)[1] - static_cast<double>(size.height) * 0.5};
}

at::ScalarType grid_type(const at::Tensor& image) {
  return image.is_floating_point() ? image.scalar_type() : at::kFloat;
}

/// The size that holds the whole rotated image, found as torchvision does, whose floats decide at the borders.
Size expanded_size(const Matrix& matrix, const Size& size) {
  const float half_width = 0.5F * static_cast<float>(size.width);
  const float half_height = 0.5F * static_cast<float>(size.height);
  const at::Tensor corners = at::tensor(std::vector<float>{-half_width, -half_height, 1, -half_width, half_height, 1,
                                                           half_width, half_height, 1, half_width, -half_height, 1})
                                 .view({4, 3});
  const at::Tensor turned = at::matmul(corners, matrix_tensor(matrix, at::kFloat)[0].t());
  const at::Tensor halves = at::tensor(std::vector<float>{half_width, half_height});
  auto [smallest, largest] = turned.aminmax(0, false);
  constexpr double kTolerance = 1e-4;
  const at::Tensor ceiling = largest.add(halves).mul_(1 / kTolerance).trunc_().mul_(kTolerance).ceil_();
  const at::Tensor floor = smallest.add(halves).mul_(1 / kTolerance).trunc_().mul_(kTolerance).floor_();
  const at::Tensor extent = ceiling.sub(floor);
  return {static_cast<int64_t>(extent[1].item<float>()), static_cast<int64_t>(extent[0].item<float>())};
}

at::Tensor gaussian_weights(int64_t size, double sigma, at::ScalarType type) {
  const double limit = static_cast<double>(size - 1) / (2 * std::sqrt(2.0));
  return at::linspace(-limit, limit, size, type).div(sigma).pow(2).neg().softmax(0);
}

}  // namespace

Size size_of(const at::Tensor& image) { return {image.size(1), image.size(2)}; }

Size size_of_shorter_side(const Size& size, int64_t shorter, std::optional<int64_t> max_size) {
  const auto [low, high] = std::minmax(size.height, size.width);
  // Rounded towards zero after a division of doubles, as Python's int(a * b / c).
  const auto part = [](int64_t a, int64_t b, int64_t c) {
    return static_cast<int64_t>(static_cast<double>(a * b) / static_cast<double>(c));
  };
  int64_t new_low = shorter;
  int64_t new_high = part(shorter, high, low);
  if (max_size && new_high > *max_size) {
    new_low = std::max<int64_t>(1, part(*max_size, new_low, new_high));
    new_high = *max_size;
  }
  return size.width <= size.height ? Size{new_high, new_low} : Size{new_low, new_high};
}

at::Tensor resize(const at::Tensor& image, const Size& size, Interpolation interpolation, bool antialias) {
  if (size == size_of(image)) return image;
  const bool nearest = interpolation == Interpolation::kNearest || interpolation == Interpolation::kNearestExact;
  const bool bytes = image.scalar_type() == at::kByte;
  // A crop is copied first: it is in one piece then.
  const bool channels_last = bytes && image.stride(0) == 1;
  const at::Tensor whole = channels_last ? image.permute({1, 2, 0}).contiguous().permute({2, 0, 1}) : image;
  if (!bytes || nearest || resizes_bytes(interpolation))
    return interpolate(as_batch(whole), size, interpolation, antialias).squeeze(0);
  return interpolate(as_batch(whole).to(at::kFloat), size, interpolation, antialias)
      .squeeze(0)
      .round_()
      .clamp_(0, 255)
      .to(at::kByte);
}

at::Tensor crop(const at::Tensor& image, int64_t top, int64_t left, const Size& size) {
  return image.narrow(1, top, size.height).narrow(2, left, size.width);
}

at::Tensor center_crop(const at::Tensor& image, const Size& size) {
  at::Tensor whole = image;
  const Size given = size_of(image);
  const int64_t more_rows = std::max<int64_t>(0, size.height - given.height);
  const int64_t more_columns = std::max<int64_t>(0, size.width - given.width);
  if (more_rows > 0 || more_columns > 0)
    whole = operations::pad(image, {more_columns / 2, more_rows / 2, (more_columns + 1) / 2, (more_rows + 1) / 2});
  const Size padded = size_of(whole);
  const auto start = [](int64_t length, int64_t part) {
    return static_cast<int64_t>(std::nearbyint(static_cast<double>(length - part) / 2));
  };
  return crop(whole, start(padded.height, size.height), start(padded.width, size.width), size);
}

at::Tensor pad(const at::Tensor& image, const Padding& padding, const Fill& fill, PaddingMode mode) {
  const auto [left, top, right, bottom] = padding;
  const Size size = size_of(image);
  if (mode == PaddingMode::kConstant) {
    at::Tensor padded =
        at::empty({image.size(0), size.height + top + bottom, size.width + left + right}, image.options());
    padded.copy_(fill_tensor(fill.value_or(std::vector<double>{0}), image).expand_as(padded));
    padded.narrow(1, top, size.height).narrow(2, left, size.width).copy_(image);
    return padded;
  }
  const int64_t most_rows = mode == PaddingMode::kReflect ? size.height - 1 : size.height;
  const int64_t most_columns = mode == PaddingMode::kReflect ? size.width - 1 : size.width;
  if (mode != PaddingMode::kEdge && (std::max(top, bottom) > most_rows || std::max(left, right) > most_columns))
    throw Error("data",
                fmt::format("an image of {} x {} pixels is too small to be mirrored by a padding of {}, {}, {}, "
                            "{} (left, top, right, bottom)",
                            size.width, size.height, left, top, right, bottom));
  return image.index_select(1, padded_positions(top, size.height, bottom, mode))
      .index_select(2, padded_positions(left, size.width, right, mode));
}

at::Tensor horizontal_flip(const at::Tensor& image) { return image.flip({2}); }
at::Tensor vertical_flip(const at::Tensor& image) { return image.flip({1}); }

at::Tensor affine(const at::Tensor& image, const AffineMap& map, Interpolation interpolation, const Fill& fill) {
  const Size size = size_of(image);
  const Matrix matrix = inverse_matrix(from_middle(map.center, size), map.angle, map.translate, map.scale, map.shear);
  const at::Tensor grid = sampling_grid(matrix_tensor(matrix, grid_type(image)), size, size);
  return sample(image, grid, interpolation, fill);
}

at::Tensor rotate(const at::Tensor& image, double angle, Interpolation interpolation, bool expand,
                  const std::optional<std::array<double, 2>>& center, const Fill& fill) {
  double turn = std::fmod(angle, 360);
  if (turn < 0) turn += 360;
  const Size size = size_of(image);
  if (!center) {
    if (turn == 0) return image;
    if (turn == 180) return image.flip({1, 2});
    if (expand || size.height == size.width) {
      if (turn == 90) return image.transpose(1, 2).flip({1});
      if (turn == 270) return image.transpose(1, 2).flip({2});
    }
  }
  const Matrix matrix = inverse_matrix(from_middle(center, size), -turn, {0, 0}, 1, {0, 0});
  const Size result = expand ? expanded_size(matrix, size) : size;
  const at::Tensor grid = sampling_grid(matrix_tensor(matrix, grid_type(image)), size, result);
  return sample(image, grid, interpolation, fill);
}

at::Tensor filter(const at::Tensor& image, const at::Tensor& kernel) {
  const int64_t channels = image.size(0);
  const std::array<int64_t, 2> ones = {1, 1};
  const std::array<int64_t, 2> zeros = {0, 0};
  return at::conv2d(image.unsqueeze(0), kernel.expand({channels, 1, kernel.size(0), kernel.size(1)}), std::nullopt,
                    ones, at::IntArrayRef(zeros), ones, channels)
      .squeeze(0);
}

at::Tensor gaussian_blur(const at::Tensor& image, std::array<int64_t, 2> kernel_size, std::array<double, 2> sigma) {
  const auto [width, height] = kernel_size;
  if (width / 2 >= image.size(2) || height / 2 >= image.size(1))
    throw Error("data", fmt::format("an image of {} x {} pixels is too small to be blurred with a kernel of {} x {}",
                                    image.size(2), image.size(1), width, height));
  const bool floating = image.is_floating_point();
  const at::ScalarType type = floating ? image.scalar_type() : at::kFloat;
  const at::Tensor kernel =
      gaussian_weights(height, sigma[1], type).unsqueeze(-1) * gaussian_weights(width, sigma[0], type);
  const at::Tensor padded =
      at::reflection_pad2d(image.to(type).contiguous().unsqueeze(0), {width / 2, width / 2, height / 2, height / 2});
  at::Tensor blurred = filter(padded.squeeze(0), kernel);
  return floating ? blurred : blurred.round_().to(image.scalar_type());
}

at::Tensor erase(const at::Tensor& image, int64_t top, int64_t left, const Size& size, const at::Tensor& value) {
  at::Tensor erased = image.clone();
  erased.narrow(1, top, size.height)
      .narrow(2, left, size.width)
      .copy_(value.expand({image.size(0), size.height, size.width}));
  return erased;
}

at::Tensor to_dtype(const at::Tensor& image, at::ScalarType type) {
  if (image.scalar_type() == type) return image;
  const bool from_float = image.is_floating_point();
  const bool to_float = at::isFloatingType(type);
  if (from_float == to_float) return image.to(type);
  if (to_float) return image.to(type).mul_(1.0 / 255);
  return image.mul(255 + 1.0 - 1e-3).to(type);
}

at::Tensor normalize(const at::Tensor& image, const std::vector<double>& mean, const std::vector<double>& std) {
  const int64_t channels = image.size(0);
  if (static_cast<int64_t>(mean.size()) != channels || static_cast<int64_t>(std.size()) != channels)
    throw ConfigError(fmt::format("mean and std must have one number for each of the {} channels; got {} and {}",
                                  channels, mean.size(), std.size()));
  if (image.scalar_type() != at::kByte) {
    const auto row = [&](const std::vector<double>& values) {
      return at::tensor(values, at::kDouble).to(image.scalar_type()).view({channels, 1, 1});
    };
    return image.sub(row(mean)).div_(row(std));
  }
  // There are 256 results for a channel; they are looked up.
  at::Tensor result = at::empty({channels, image.size(1), image.size(2)}, at::kFloat);
  auto* output = result.mutable_data_ptr<float>();
  const auto* input = image.const_data_ptr<uint8_t>();
  std::vector<std::array<float, 256>> tables(static_cast<size_t>(channels));
  for (size_t c = 0; c < tables.size(); ++c) {
    const auto shift = static_cast<float>(mean[c]);
    const auto scale = static_cast<float>(std[c]);
    const auto unit = static_cast<float>(1.0 / 255);
    for (size_t byte = 0; byte < 256; ++byte) tables[c][byte] = (static_cast<float>(byte) * unit - shift) / scale;
  }
  const int64_t height = image.size(1);
  const int64_t width = image.size(2);
  for (int64_t c = 0; c < channels; ++c) {
    const auto& table = tables[static_cast<size_t>(c)];
    for (int64_t y = 0; y < height; ++y) {
      const uint8_t* row = input + c * image.stride(0) + y * image.stride(1);
      const int64_t step = image.stride(2);
      for (int64_t x = 0; x < width; ++x) *output++ = table[row[x * step]];
    }
  }
  return result;
}

}  // namespace levin::data::operations
