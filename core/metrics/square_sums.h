#pragma once

#include <ATen/core/Tensor.h>

/// Sums of squares of numbers anywhere in float64's range, as a state of Reduction::kSum: [3], float64. Batches of
/// small, ordinary and large numbers are summed apart, the first and the last scaled (J. L. Blue, "A portable Fortran
/// program to find the Euclidean norm of a vector", 1978), so that no root overflows or vanishes.
namespace levin::metrics::detail {

/// Returns the sums of no numbers.
at::Tensor no_squares();
/// Returns the sums of a tensor's elements, read as float64.
at::Tensor squares_of(const at::Tensor& values);
/// Returns the sums of numbers of which the sum of squares is a number.
at::Tensor ordinary_squares(const at::Tensor& sum);
/// Returns the mean of the squares of `count` numbers: NaN of none, infinite beyond float64's range.
at::Tensor mean_square(const at::Tensor& sums, const at::Tensor& count);
/// Returns its root.
at::Tensor root_mean_square(const at::Tensor& sums, const at::Tensor& count);

}  // namespace levin::metrics::detail
