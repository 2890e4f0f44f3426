#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/metrics/regression.h>

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

 private:
  Options options_;
};

}  // namespace levin::metrics
