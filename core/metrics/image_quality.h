#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/metrics/metric.h>
#include <levin/core/metrics/regression.h>

#include <vector>

/// Metrics of pictures against the pictures that they should be.
namespace levin::metrics {

struct PeakSignalNoiseRatioOptions {
  double data_range = 1;  ///< from the smallest to the largest value that a pixel can have: 255 for bytes

  static void describe(Schema<PeakSignalNoiseRatioOptions>& schema);
};

/// Peak signal-to-noise ratio 10 · log10(data_range² / mean squared error) over all pixels seen, in decibels.
class PeakSignalNoiseRatio : public SumMetric {
 public:
  using Options = PeakSignalNoiseRatioOptions;

  explicit PeakSignalNoiseRatio(const Options& options = {});

  /// Returns a scalar, float64: infinite where all is equal, NaN before any update.
  at::Tensor compute() const override;

 protected:
  at::Tensor sums_of(const at::Tensor& predictions, const at::Tensor& targets) const override;
  /// Earlier versions kept one sum of squares.
  State upgraded(const State& saved) const override;

 private:
  Options options_;
};

struct StructuralSimilarityOptions {
  double data_range = 1;  ///< from the smallest to the largest value that a pixel can have
  double sigma = 1.5;     ///< standard deviation of the window, in pixels; the window is 7 times as wide
  double k1 = 0.01;
  double k2 = 0.03;

  static void describe(Schema<StructuralSimilarityOptions>& schema);
};

/// Mean over images of SSIM: how alike luminance, contrast and structure are in windows of a Gaussian, from -1 to 1
/// (Wang et al., 2004). As in
/// torchmetrics, windows at the edge see the image mirrored.
class StructuralSimilarity : public Metric {
 public:
  using Options = StructuralSimilarityOptions;

  /// Throws levin::ConfigError when an option is out of range.
  explicit StructuralSimilarity(const Options& options = {});

  /// Adds a batch of images [N, C, H, W]. Throws levin::Error for other shapes, shapes that differ, and images no
  /// larger than half the window.
  StructuralSimilarity& update(const at::Tensor& predictions, const at::Tensor& targets);

  /// Returns a scalar, float64; NaN before any update.
  at::Tensor compute() const override;

 private:
  Options options_;
  std::vector<double> window_;  ///< weights of the pixels of a row or column
};

}  // namespace levin::metrics
