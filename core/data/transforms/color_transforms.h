#pragma once

#include <levin/core/data/transforms/one_or_more.h>
#include <levin/core/data/transforms/transform.h>

#include <array>
#include <cstdint>
#include <optional>

namespace levin::data {

struct ColorJitterOptions {
  OneOrMore<double> brightness = 0.0;
  OneOrMore<double> contrast = 0.0;
  OneOrMore<double> saturation = 0.0;
  OneOrMore<double> hue = 0.0;

  static void describe(Schema<ColorJitterOptions>& schema);
};

/// Changes brightness, contrast, saturation and hue by random factors, in random order.
class ColorJitter : public ImageTransform {
 public:
  using Options = ColorJitterOptions;
  explicit ColorJitter(const Options& options) : options_(options) {}
  bool is_random() const override { return true; }
  at::Tensor transform(const at::Tensor& image, Generator& generator) const override;

  struct Change {
    std::array<int, 4> order = {0, 1, 2, 3};            ///< of brightness, contrast, saturation and hue
    std::array<std::optional<double>, 4> factors = {};  ///< nothing: left as it is
  };
  Change draw(Generator& generator) const;

 private:
  Options options_;
};

struct GrayscaleOptions {
  int64_t num_output_channels = 1;

  static void describe(Schema<GrayscaleOptions>& schema);
};

/// Takes the colours away.
class Grayscale : public ImageTransform {
 public:
  using Options = GrayscaleOptions;
  explicit Grayscale(const Options& options) : channels_(options.num_output_channels) {}
  at::Tensor transform(const at::Tensor& image, Generator& generator) const override;

 private:
  int64_t channels_;
};

struct RandomGrayscaleOptions {
  double p = 0.1;

  static void describe(Schema<RandomGrayscaleOptions>& schema);
};

/// Takes the colours away at random; the number of channels stays.
class RandomGrayscale : public ImageTransform {
 public:
  using Options = RandomGrayscaleOptions;
  explicit RandomGrayscale(const Options& options) : p_(options.p) {}
  bool is_random() const override { return true; }
  at::Tensor transform(const at::Tensor& image, Generator& generator) const override;

 private:
  double p_;
};

}  // namespace levin::data
