#pragma once

#include <levin/core/data/transforms/image_operations.h>
#include <levin/core/data/transforms/one_or_more.h>
#include <levin/core/data/transforms/transform.h>

#include <cstdint>
#include <optional>
#include <string>

namespace levin::data {

/// An operation of RandAugment and TrivialAugmentWide with its strength.
struct AugmentOperation {
  std::string name = {};  ///< "Identity", "ShearX", ...
  double magnitude = 0;
};

/// Applies it as torchvision does.
at::Tensor augment(const at::Tensor& image, const AugmentOperation& operation, operations::Interpolation interpolation,
                   const operations::Fill& fill);

struct RandAugmentOptions {
  int64_t num_ops = 2;
  int64_t magnitude = 9;
  int64_t num_magnitude_bins = 31;
  operations::Interpolation interpolation = operations::Interpolation::kNearest;
  std::optional<OneOrMore<double>> fill = {};

  static void describe(Schema<RandAugmentOptions>& schema);
};

/// Applies some random operations of a given strength (Cubuk et al.: "RandAugment", 2019).
class RandAugment : public ImageTransform {
 public:
  using Options = RandAugmentOptions;
  explicit RandAugment(const Options& options);
  bool is_random() const override { return true; }
  at::Tensor transform(const at::Tensor& image, Generator& generator) const override;
  /// Draws one operation for an image of a size.
  AugmentOperation draw(const operations::Size& image, Generator& generator) const;

 private:
  Options options_;
};

struct TrivialAugmentWideOptions {
  int64_t num_magnitude_bins = 31;
  operations::Interpolation interpolation = operations::Interpolation::kNearest;
  std::optional<OneOrMore<double>> fill = {};

  static void describe(Schema<TrivialAugmentWideOptions>& schema);
};

/// Applies one random operation of random strength (Mueller and Hutter: "TrivialAugment", 2021).
class TrivialAugmentWide : public ImageTransform {
 public:
  using Options = TrivialAugmentWideOptions;
  explicit TrivialAugmentWide(const Options& options) : options_(options) {}
  bool is_random() const override { return true; }
  at::Tensor transform(const at::Tensor& image, Generator& generator) const override;
  /// Draws the operation.
  AugmentOperation draw(Generator& generator) const;

 private:
  Options options_;
};

}  // namespace levin::data
