#pragma once

#include <levin/core/metrics/curves.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

/// Pictures of what no single number says, for Trainer::log_image.
namespace levin::metrics {

struct ConfusionMatrixImageOptions {
  int64_t cell = 32;  ///< pixels across a class; less than 32 leaves the numbers out
};

/// Draws a confusion matrix [labels, predictions], counts or shares: a row for each label, with its number at the left,
/// a column for each predicted class, with its number above. A cell is the darker the larger its part of its row is.
/// Returns bytes [3, H, W] on the CPU; waits for the device. Throws levin::Error for what is no square matrix.
at::Tensor confusion_matrix_image(const at::Tensor& matrix, const ConfusionMatrixImageOptions& options = {});

struct CurveImageOptions {
  int64_t size = 256;     ///< pixels from 0 to 1
  bool steps = false;     ///< from point to point goes along the axes, as a precision-recall curve is averaged
  bool diagonal = false;  ///< draws the line that guessing gives, for a ROC curve
};

/// Draws curves within [0, 1] × [0, 1], each in a colour of its own, which repeat after eight. Points that are NaN are
/// left out. Returns bytes [3, H, W] on the CPU; waits for the device. Throws levin::Error for a size below 16.
at::Tensor curve_image(const std::vector<Curve>& curves, const CurveImageOptions& options = {});

/// The curve of a metric as such a picture.
at::Tensor curve_image(const PrecisionRecallCurve& metric);
at::Tensor curve_image(const Roc& metric);

}  // namespace levin::metrics
