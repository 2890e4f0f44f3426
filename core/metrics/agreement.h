#pragma once

#include <levin/core/metrics/confusion_matrix.h>

#include <cstdint>
#include <string>

/// How far predicted classes agree with labels beyond chance, from the confusion matrix.
namespace levin::metrics {

struct AgreementOptions {
  int64_t num_classes = 0;  ///< must be set

  static void describe(Schema<AgreementOptions>& schema);
};

/// Correlation of predicted and labelled classes, from -1 to 1; 0 where all predictions or all labels are one class
/// (Gorodkin, 2004; of two classes Matthews, 1975).
class MatthewsCorrelation : public ConfusionMatrix {
 public:
  using Options = AgreementOptions;
  explicit MatthewsCorrelation(const Options& options);

  /// Returns a scalar, float64.
  at::Tensor compute() const override;
};

struct CohenKappaOptions {
  int64_t num_classes = 0;       ///< must be set
  std::string weights = "none";  ///< of a disagreement: none: 1; linear, quadratic: by the distance of the classes

  static void describe(Schema<CohenKappaOptions>& schema);
};

/// 1 - disagreements over those expected by chance (Cohen, 1960, 1968).
class CohenKappa : public ConfusionMatrix {
 public:
  using Options = CohenKappaOptions;
  explicit CohenKappa(const Options& options);

  /// Returns a scalar, float64; NaN where chance would agree always.
  at::Tensor compute() const override;

 private:
  std::string weights_;
};

}  // namespace levin::metrics
