#pragma once

#include <levin/core/data/transforms/image_operations.h>
#include <levin/core/data/transforms/one_or_more.h>
#include <levin/core/data/transforms/transform.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace levin::data {

struct RandomRotationOptions {
  OneOrMore<double> degrees = {};
  operations::Interpolation interpolation = operations::Interpolation::kNearest;
  bool expand = false;
  std::optional<std::array<double, 2>> center = {};
  OneOrMore<double> fill = 0.0;

  static void describe(Schema<RandomRotationOptions>& schema);
};

/// Turns by a random angle.
class RandomRotation : public ImageTransform {
 public:
  using Options = RandomRotationOptions;
  explicit RandomRotation(const Options& options);
  bool is_random() const override { return true; }
  at::Tensor transform(const at::Tensor& image, Generator& generator) const override;

 private:
  Options options_;
};

struct RandomAffineOptions {
  OneOrMore<double> degrees = {};
  std::optional<std::array<double, 2>> translate = {};
  std::optional<std::vector<double>> scale = {};
  std::optional<OneOrMore<double>> shear = {};
  operations::Interpolation interpolation = operations::Interpolation::kNearest;
  OneOrMore<double> fill = 0.0;
  std::optional<std::array<double, 2>> center = {};

  static void describe(Schema<RandomAffineOptions>& schema);
};

/// Turns, shifts, scales and shears at random.
class RandomAffine : public ImageTransform {
 public:
  using Options = RandomAffineOptions;
  explicit RandomAffine(const Options& options);
  bool is_random() const override { return true; }
  at::Tensor transform(const at::Tensor& image, Generator& generator) const override;
  /// Draws the map of an image of a size.
  operations::AffineMap draw(const operations::Size& image, Generator& generator) const;

 private:
  Options options_;
};

struct GaussianBlurOptions {
  OneOrMore<int64_t> kernel_size = {};
  OneOrMore<double> sigma = {0.1, 2.0};

  static void describe(Schema<GaussianBlurOptions>& schema);
};

/// Blurs by a random amount.
class GaussianBlur : public ImageTransform {
 public:
  using Options = GaussianBlurOptions;
  explicit GaussianBlur(const Options& options);
  bool is_random() const override { return true; }
  at::Tensor transform(const at::Tensor& image, Generator& generator) const override;

 private:
  Options options_;
};

struct RandomErasingOptions {
  double p = 0.5;
  std::vector<double> scale = {0.02, 0.33};
  std::vector<double> ratio = {0.3, 3.3};
  std::optional<OneOrMore<double>> value = OneOrMore<double>(0.0);

  static void describe(Schema<RandomErasingOptions>& schema);
};

/// Paints over a random rectangle.
class RandomErasing : public ImageTransform {
 public:
  using Options = RandomErasingOptions;
  explicit RandomErasing(const Options& options) : options_(options) {}
  bool is_random() const override { return true; }
  at::Tensor transform(const at::Tensor& image, Generator& generator) const override;

 private:
  Options options_;
};

}  // namespace levin::data
