#pragma once

#include <levin/core/metrics/metric.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace levin::metrics {

struct FrechetInceptionDistanceOptions {
  /// Returns the features of images, [N, num_features], on any device; called without gradients. Must be set: a network
  /// that was exported, such as a levin::ScriptModule.
  std::function<at::Tensor(const at::Tensor& images)> features = {};
  int64_t num_features = 0;  ///< must be set
};

/// How far generated images are from real ones: the Fréchet distance of two normal distributions with the means and
/// covariances of their features (Heusel et al., 2017, arXiv:1706.08500; "FID" where the features are those of
/// Inception v3). 0 is best. Sums of features and of their outer products are kept in float64, so that ranks and uneven
/// batches make no difference beyond rounding.
class FrechetInceptionDistance : public Metric {
 public:
  using Options = FrechetInceptionDistanceOptions;

  /// Throws levin::ConfigError without features or with num_features below 1.
  explicit FrechetInceptionDistance(const Options& options);

  /// Adds a batch of real or of generated images, whatever `features` takes. Throws levin::Error where that does not
  /// give floating-point [N, num_features].
  FrechetInceptionDistance& update(const at::Tensor& images, bool real);

  /// Returns a scalar, float64. NaN with fewer than two real or two generated images, and where a feature is infinite
  /// or no number.
  at::Tensor compute() const override;

 protected:
  /// Earlier versions kept sums of features and of their products.
  State upgraded(const State& saved) const override;

 private:
  Options options_;
};

}  // namespace levin::metrics
