#include <levin/core/metrics/square_sums.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace levin::metrics::detail {
namespace {

constexpr double kSmall = 0x1p-500;
constexpr double kLarge = 0x1p500;
/// Of small numbers; large ones are divided by it.
constexpr double kScale = 0x1p600;

}  // namespace

at::Tensor no_squares() { return at::zeros({3}, at::kDouble); }

at::Tensor squares_of(const at::Tensor& values) {
  const at::Tensor wide = values.to(at::kDouble);
  if (wide.numel() == 0) return at::zeros({3}, wide.options());
  const at::Tensor largest = wide.abs().max();
  const at::Tensor is_small = largest < kSmall;
  const at::Tensor is_large = largest > kLarge;
  const at::Tensor scale =
      at::where(is_small, kScale, at::where(is_large, at::full({}, 1 / kScale, wide.options()), 1.0));
  const at::Tensor sum = (wide * scale).square_().sum();
  return at::where(at::stack({is_small, (is_small | is_large).logical_not(), is_large}), sum, 0.0);
}

at::Tensor ordinary_squares(const at::Tensor& sum) {
  const at::Tensor none = at::zeros({}, sum.options());
  return at::stack({none, sum, none}).to(at::kDouble);
}

at::Tensor mean_square(const at::Tensor& sums, const at::Tensor& count) {
  const at::Tensor means = sums / count;
  return means[0] / kScale / kScale + means[1] + means[2] * kScale * kScale;
}

at::Tensor root_mean_square(const at::Tensor& sums, const at::Tensor& count) {
  const at::Tensor means = sums / count;
  const at::Tensor of_ordinary = (means[1] + means[0] / kScale / kScale).sqrt();
  const at::Tensor of_large = (means[2] + means[1] / kScale / kScale).sqrt() * kScale;
  return at::where(sums[2] > 0, of_large, at::where(sums[1] == 0, means[0].sqrt() / kScale, of_ordinary));
}

}  // namespace levin::metrics::detail
