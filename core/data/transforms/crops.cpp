#include <levin/core/data/transforms/crops.h>

#include <levin/core/base/error.h>
#include <levin/core/data/transforms/transform_options.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace levin::data {

namespace {

constexpr const char* kSizeDoc = "pixels: one number for a square, or [height, width]";
constexpr const char* kSizeConstraint = "one or two numbers from 1 to 1048576";
constexpr const char* kPaddingDoc =
    "pixels at the sides: one number, [left and right, top and bottom] or [left, top, right, bottom]";
constexpr const char* kPaddingConstraint = "one, two or four numbers of at least 0";
constexpr const char* kPixelFillDoc = "value of added pixels: one number, or one for each channel";
constexpr const char* kModeDoc =
    "source of added pixels: fill, edge, or the image mirrored without (reflect) or with (symmetric) its border";

bool is_padding(const OneOrMore<int64_t>& padding) {
  if (padding.count() != 1 && padding.count() != 2 && padding.count() != 4) return false;
  return std::all_of(padding.values().begin(), padding.values().end(), [](int64_t value) { return value >= 0; });
}

int64_t rounded(double value) { return static_cast<int64_t>(std::nearbyint(value)); }

}  // namespace

void ResizeOptions::describe(Schema<ResizeOptions>& schema) {
  using O = ResizeOptions;
  schema.field("size", &O::size, "pixels of the shorter side, or [height, width]").require(kSizeConstraint, is_size);
  schema.field("interpolation", &O::interpolation, "interpolation between pixels", interpolation_names());
  schema.field("max_size", &O::max_size, "most pixels of the longer side, with one number as size").at_least(1);
  schema.field("antialias", &O::antialias, "antialias when shrinking (bilinear, bicubic)");
}

Resize::Resize(const Options& options) : options_(checked(options, "resize")) {
  if (options_.max_size && (options_.size.count() != 1 || *options_.max_size <= options_.size[0]))
    throw ConfigError(fmt::format("max_size of resize needs one number as size, which must be smaller; got {} and {}",
                                  *options_.max_size, ConfigCodec<OneOrMore<int64_t>>::dump(options_.size).to_flow()));
}

at::Tensor Resize::transform(const at::Tensor& image, Generator& /*generator*/) const {
  const operations::Size size =
      options_.size.count() == 2
          ? operations::Size{options_.size[0], options_.size[1]}
          : operations::size_of_shorter_side(operations::size_of(image), options_.size[0], options_.max_size);
  return operations::resize(image, size, options_.interpolation, options_.antialias);
}

void CenterCropOptions::describe(Schema<CenterCropOptions>& schema) {
  schema.field("size", &CenterCropOptions::size, kSizeDoc).require(kSizeConstraint, is_size);
}

CenterCrop::CenterCrop(const Options& options) {
  const OneOrMore<int64_t> size = checked(options, "center_crop").size;
  size_ = {size.at(0), size.at(1)};
}

at::Tensor CenterCrop::transform(const at::Tensor& image, Generator& /*generator*/) const {
  return operations::center_crop(image, size_);
}

void PadOptions::describe(Schema<PadOptions>& schema) {
  schema.field("padding", &PadOptions::padding, kPaddingDoc).require(kPaddingConstraint, is_padding);
  schema.field("fill", &PadOptions::fill, kPixelFillDoc);
  schema.field("padding_mode", &PadOptions::padding_mode, kModeDoc, padding_mode_names());
}

Pad::Pad(const Options& options) : options_(checked(options, "pad")) {}

at::Tensor Pad::transform(const at::Tensor& image, Generator& /*generator*/) const {
  return operations::pad(image, to_padding(options_.padding), options_.fill.values(), options_.padding_mode);
}

void RandomCropOptions::describe(Schema<RandomCropOptions>& schema) {
  using O = RandomCropOptions;
  schema.field("size", &O::size, kSizeDoc).require(kSizeConstraint, is_size);
  schema.field("padding", &O::padding, kPaddingDoc).require(kPaddingConstraint, is_padding);
  schema.field("pad_if_needed", &O::pad_if_needed, "pad images that are smaller than size");
  schema.field("fill", &O::fill, kPixelFillDoc);
  schema.field("padding_mode", &O::padding_mode, kModeDoc, padding_mode_names());
}

RandomCrop::RandomCrop(const Options& options) : options_(checked(options, "random_crop")) {}

at::Tensor RandomCrop::transform(const at::Tensor& image, Generator& generator) const {
  const operations::Size size = {options_.size.at(0), options_.size.at(1)};
  const operations::Size given = operations::size_of(image);
  operations::Padding padding = options_.padding ? to_padding(*options_.padding) : operations::Padding{};
  int64_t height = given.height + padding.top + padding.bottom;
  int64_t width = given.width + padding.left + padding.right;
  if (options_.pad_if_needed) {
    const int64_t rows = std::max<int64_t>(0, size.height - height);
    const int64_t columns = std::max<int64_t>(0, size.width - width);
    padding = {padding.left + columns, padding.top + rows, padding.right + columns, padding.bottom + rows};
    height += 2 * rows;
    width += 2 * columns;
  }
  if (height < size.height || width < size.width)
    throw Error("data", fmt::format("random_crop cannot cut {} x {} pixels out of {} x {}; hint: resize first, or set "
                                    "pad_if_needed",
                                    size.width, size.height, width, height));
  const int64_t top = generator.below(height - size.height + 1);
  const int64_t left = generator.below(width - size.width + 1);
  const bool pads = padding.left + padding.top + padding.right + padding.bottom > 0;
  const at::Tensor padded =
      pads ? operations::pad(image, padding, options_.fill.values(), options_.padding_mode) : image;
  return operations::crop(padded, top, left, size);
}

void RandomResizedCropOptions::describe(Schema<RandomResizedCropOptions>& schema) {
  using O = RandomResizedCropOptions;
  schema.field("size", &O::size, kSizeDoc).require(kSizeConstraint, is_size);
  schema.field("scale", &O::scale, "smallest and largest part of the image's area")
      .require("two numbers above 0, the smaller first", [](const auto& range) { return is_range(range, 1e-9, 1e9); });
  schema.field("ratio", &O::ratio, "smallest and largest width for a height of 1")
      .require("two numbers above 0, the smaller first", [](const auto& range) { return is_range(range, 1e-9, 1e9); });
  schema.field("interpolation", &O::interpolation, "interpolation between pixels", interpolation_names());
  schema.field("antialias", &O::antialias, "antialias when shrinking (bilinear, bicubic)");
}

RandomResizedCrop::RandomResizedCrop(const Options& options) : options_(checked(options, "random_resized_crop")) {}

RandomResizedCrop::Part RandomResizedCrop::draw(const operations::Size& image, Generator& generator) const {
  const auto height = static_cast<double>(image.height);
  const auto width = static_cast<double>(image.width);
  const auto& ratio = options_.ratio;
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    const double area = height * width * uniform(generator, options_.scale[0], options_.scale[1]);
    const double aspect = std::exp(uniform(generator, std::log(ratio[0]), std::log(ratio[1])));
    const operations::Size size = {rounded(std::sqrt(area / aspect)), rounded(std::sqrt(area * aspect))};
    if (size.width < 1 || size.width > image.width || size.height < 1 || size.height > image.height) continue;
    const int64_t top = generator.below(image.height - size.height + 1);
    const int64_t left = generator.below(image.width - size.width + 1);
    return {top, left, size};
  }
  // The middle, of the nearest shape that is allowed.
  operations::Size size = image;
  if (width / height < ratio[0]) size.height = std::max<int64_t>(1, rounded(width / ratio[0]));
  if (width / height > ratio[1]) size.width = std::max<int64_t>(1, rounded(height * ratio[1]));
  return {(image.height - size.height) / 2, (image.width - size.width) / 2, size};
}

at::Tensor RandomResizedCrop::transform(const at::Tensor& image, Generator& generator) const {
  const Part part = draw(operations::size_of(image), generator);
  return operations::resize(operations::crop(image, part.top, part.left, part.size),
                            {options_.size.at(0), options_.size.at(1)}, options_.interpolation, options_.antialias);
}

void RandomFlipOptions::describe(Schema<RandomFlipOptions>& schema) {
  schema.field("p", &RandomFlipOptions::p, "probability").at_least(0).at_most(1);
}

at::Tensor RandomHorizontalFlip::transform(const at::Tensor& image, Generator& generator) const {
  return generator.uniform() < p_ ? operations::horizontal_flip(image) : image;
}

at::Tensor RandomVerticalFlip::transform(const at::Tensor& image, Generator& generator) const {
  return generator.uniform() < p_ ? operations::vertical_flip(image) : image;
}

}  // namespace levin::data
