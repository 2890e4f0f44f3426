#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/base/schema.h>
#include <levin/core/base/spec.h>
#include <levin/core/data/batch.h>
#include <levin/core/data/generator.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace levin::data {

/// A mixture of the images of a batch with each other. Its random numbers are drawn on the host, where the batch is
/// fetched; the arithmetic is done on the device, which nobody waits for.
class BatchMix : public Configurable {
 public:
  /// Draws the numbers for a batch of images of this height and width: tensors without dimensions, among them
  /// "weight", the part of itself that each label keeps. Fractions are made by fraction_tensor, so that no precision
  /// converts them on the way.
  virtual Batch draw(int64_t height, int64_t width, Generator& generator) const = 0;
  /// Returns floating images [N, channels, height, width] mixed with as many others, with numbers drawn before.
  virtual at::Tensor mix(const at::Tensor& images, const at::Tensor& others, const Batch& numbers) const = 0;
};

using BatchMixes = std::vector<std::shared_ptr<const BatchMix>>;

/// Options of MixUp and CutMix.
struct BatchMixOptions {
  double alpha = 1.0;

  static void describe(Schema<BatchMixOptions>& schema);
};

/// Weighted means of pairs of images (Zhang et al.: "mixup: Beyond Empirical Risk Minimization", 2017).
class MixUp : public BatchMix {
 public:
  using Options = BatchMixOptions;
  explicit MixUp(const Options& options);
  Batch draw(int64_t height, int64_t width, Generator& generator) const override;
  at::Tensor mix(const at::Tensor& images, const at::Tensor& others, const Batch& numbers) const override;

 private:
  double alpha_;
};

/// A rectangle of each image is another one's, and labels are mixed by area (Yun et al.: "CutMix: Regularization
/// Strategy to Train Strong Classifiers with Localizable Features", 2019). Draws "top", "bottom", "left" and "right",
/// too.
class CutMix : public BatchMix {
 public:
  using Options = BatchMixOptions;
  explicit CutMix(const Options& options);
  Batch draw(int64_t height, int64_t width, Generator& generator) const override;
  at::Tensor mix(const at::Tensor& images, const at::Tensor& others, const Batch& numbers) const override;

 private:
  double alpha_;
};

/// Puts a fraction into a whole number, bit by bit.
at::Tensor fraction_tensor(double fraction);
/// Returns the fraction that such a tensor has, double, on its device.
at::Tensor fraction_of(const at::Tensor& tensor);
/// Returns values * weight + others * (1 - weight), the values of torchvision's mixtures. `weight`: a double without
/// dimensions.
at::Tensor weighted_mean(const at::Tensor& values, const at::Tensor& others, const at::Tensor& weight);

/// Names that `mix` may use in YAML: those of torchvision's v2 in small letters, and a program's own.
Registry<BatchMix>& mix_registry();

/// Makes the mixtures of a list: `[mix_up, {cut_mix: {alpha: 0.5}}]`. Throws ConfigError naming the place.
BatchMixes make_mixes(const std::vector<Spec<BatchMix>>& specs, const std::string& path);

}  // namespace levin::data
