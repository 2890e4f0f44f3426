#pragma once

#include <levin/core/data/transforms/image_operations.h>
#include <levin/core/data/transforms/one_or_more.h>
#include <levin/core/data/transforms/transform.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace levin::data {

struct ResizeOptions {
  OneOrMore<int64_t> size = {};
  operations::Interpolation interpolation = operations::Interpolation::kBilinear;
  std::optional<int64_t> max_size = {};
  bool antialias = true;

  static void describe(Schema<ResizeOptions>& schema);
};

/// Resizes the shorter side to one number, or height and width to two.
class Resize : public ImageTransform {
 public:
  using Options = ResizeOptions;
  explicit Resize(const Options& options);
  at::Tensor transform(const at::Tensor& image, Generator& generator) const override;

 private:
  Options options_;
};

struct CenterCropOptions {
  OneOrMore<int64_t> size = {};

  static void describe(Schema<CenterCropOptions>& schema);
};

/// Cuts out the middle; a smaller image is padded with zeros.
class CenterCrop : public ImageTransform {
 public:
  using Options = CenterCropOptions;
  explicit CenterCrop(const Options& options);
  at::Tensor transform(const at::Tensor& image, Generator& generator) const override;

 private:
  operations::Size size_;
};

struct PadOptions {
  OneOrMore<int64_t> padding = {};
  OneOrMore<double> fill = 0.0;
  operations::PaddingMode padding_mode = operations::PaddingMode::kConstant;

  static void describe(Schema<PadOptions>& schema);
};

/// Adds pixels at the sides.
class Pad : public ImageTransform {
 public:
  using Options = PadOptions;
  explicit Pad(const Options& options);
  at::Tensor transform(const at::Tensor& image, Generator& generator) const override;

 private:
  Options options_;
};

struct RandomCropOptions {
  OneOrMore<int64_t> size = {};
  std::optional<OneOrMore<int64_t>> padding = {};
  bool pad_if_needed = false;
  OneOrMore<double> fill = 0.0;
  operations::PaddingMode padding_mode = operations::PaddingMode::kConstant;

  static void describe(Schema<RandomCropOptions>& schema);
};

/// Cuts out a part at a random place, after padding.
class RandomCrop : public ImageTransform {
 public:
  using Options = RandomCropOptions;
  explicit RandomCrop(const Options& options);
  bool is_random() const override { return true; }
  at::Tensor transform(const at::Tensor& image, Generator& generator) const override;

 private:
  Options options_;
};

struct RandomResizedCropOptions {
  OneOrMore<int64_t> size = {};
  std::vector<double> scale = {0.08, 1.0};
  std::vector<double> ratio = {3.0 / 4, 4.0 / 3};
  operations::Interpolation interpolation = operations::Interpolation::kBilinear;
  bool antialias = true;

  static void describe(Schema<RandomResizedCropOptions>& schema);
};

/// Cuts out a part of random area and shape and resizes it.
class RandomResizedCrop : public ImageTransform {
 public:
  using Options = RandomResizedCropOptions;
  explicit RandomResizedCrop(const Options& options);
  bool is_random() const override { return true; }
  at::Tensor transform(const at::Tensor& image, Generator& generator) const override;

  struct Part {
    int64_t top = 0;
    int64_t left = 0;
    operations::Size size = {};
  };
  /// Draws the part of an image of a size.
  Part draw(const operations::Size& image, Generator& generator) const;

 private:
  Options options_;
};

struct RandomFlipOptions {
  double p = 0.5;

  static void describe(Schema<RandomFlipOptions>& schema);
};

/// Mirrors from left to right.
class RandomHorizontalFlip : public ImageTransform {
 public:
  using Options = RandomFlipOptions;
  explicit RandomHorizontalFlip(const Options& options) : p_(options.p) {}
  bool is_random() const override { return true; }
  at::Tensor transform(const at::Tensor& image, Generator& generator) const override;

 private:
  double p_;
};

/// Mirrors from top to bottom.
class RandomVerticalFlip : public ImageTransform {
 public:
  using Options = RandomFlipOptions;
  explicit RandomVerticalFlip(const Options& options) : p_(options.p) {}
  bool is_random() const override { return true; }
  at::Tensor transform(const at::Tensor& image, Generator& generator) const override;

 private:
  double p_;
};

}  // namespace levin::data
