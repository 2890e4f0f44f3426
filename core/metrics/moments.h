#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// First and second moments of d variables over samples, as a state of Reduction::kMoments: [d + 1, d + 2], float64.
/// Deviations are taken from means, so that no digits are lost where means are large (Chan, Golub and LeVeque,
/// "Updating formulae and a pairwise algorithm for computing sample variances", 1979).
///
///     count      mean of each variable                                    0
///     rest       sums of the products of deviations from the means        unit
///
/// The rest, a column, is what rounding took from the means. The unit of a variable, a column too, is the power of two
/// above its largest deviation: products are in units of their variables, so that they neither overflow nor vanish
/// where values are near the ends of float64's range. It is 0 while there is no deviation.
namespace levin::metrics::detail {

/// Returns the moments of no samples.
at::Tensor no_moments(int64_t variables);
/// Adds samples, [samples, d], float64, in place.
void add_samples(at::Tensor& moments, const at::Tensor& samples);
/// Adds samples by their variables, each [samples], float64, in place. Few variables on the host cost no operators.
void add_variables(at::Tensor& moments, at::TensorList variables);
/// Adds the samples of other moments, in place.
void merge_moments(at::Tensor& into, const at::Tensor& other);
/// Returns the power of two above each value, which is not negative; 0 for 0.
at::Tensor unit_above(const at::Tensor& values);
/// Returns moments from sums of the variables, [d], and of their products, [d, d]. What these sums have lost stays
/// lost.
at::Tensor moments_from_sums(const at::Tensor& count, const at::Tensor& sums, const at::Tensor& products);

/// The parts of moments, as views.
struct MomentParts {
  explicit MomentParts(const at::Tensor& moments);

  /// Returns means of the products of deviations, [d, d], in the variables' units: variances and covariances of the
  /// samples as a population. A variance that follows from rounding alone is 0.
  at::Tensor covariances() const;

  at::Tensor count;     ///< scalar
  at::Tensor means;     ///< [d]
  at::Tensor rests;     ///< [d]
  at::Tensor products;  ///< [d, d], in units
  at::Tensor units;     ///< [d]
};

}  // namespace levin::metrics::detail
