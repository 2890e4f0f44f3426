#include "tests/support/sim_device/batch_norm_kernels.h"

#include "tests/support/sim_device/kernel.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

namespace levin::testing::sim {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor or_undefined(const OptionalTensor& tensor) { return tensor.value_or(at::Tensor()); }

/// All dimensions but that of the channels.
std::vector<int64_t> others(const at::Tensor& input) {
  std::vector<int64_t> dimensions;
  for (int64_t d = 0; d < input.dim(); ++d)
    if (d != 1) dimensions.push_back(d);
  return dimensions;
}

at::Tensor by_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = values.size(0);
  return values.view(shape);
}

at::ScalarType accumulates_in(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

std::tuple<at::Tensor, at::Tensor> stats(const at::Tensor& input, double eps) {
  const auto made = run_kernel("batch_norm_stats", {input}, {}, [eps](const Tensors& in) -> Tensors {
    const at::Tensor x = in[0].to(accumulates_in(in[0]));
    return {x.mean(others(x)), (x.var(others(x), /*unbiased=*/false) + eps).rsqrt()};
  });
  return {made[0], made[1]};
}

std::tuple<at::Tensor, at::Tensor> gather_stats(const at::Tensor& input, const at::Tensor& means,
                                                const at::Tensor& inverses, const OptionalTensor& running_mean,
                                                const OptionalTensor& running_variance, double momentum, double eps,
                                                const at::Tensor& counts) {
  Tensors running;
  if (running_mean && running_mean->defined()) running = {*running_mean, *running_variance};
  const auto made = run_kernel("batch_norm_gather_stats_with_counts", {means, inverses, counts}, running,
                               [momentum, eps](const Tensors& in) -> Tensors {
                                 // One rank after the other, with the divisions of the CUDA kernel.
                                 at::Tensor mean = at::zeros_like(in[0][0]), squares = mean.clone();
                                 at::Tensor total = at::zeros({}, in[0].options());
                                 for (int64_t rank = 0; rank < in[0].size(0); ++rank) {
                                   const at::Tensor count = in[2][rank].to(in[0].scalar_type());
                                   const at::Tensor factor = 1 / (total + count);
                                   const at::Tensor of_rank = (in[1][rank].reciprocal().square() - eps) * count;
                                   squares += of_rank + (mean - in[0][rank]).square() * total * count * factor;
                                   mean = total * factor * mean + count * factor * in[0][rank];
                                   total += count;
                                 }
                                 if (in.size() > 3) {
                                   at::Tensor running_mean = in[3], running_variance = in[4];
                                   running_mean.mul_(1 - momentum).add_(mean, momentum);
                                   running_variance.mul_(1 - momentum).add_(squares / (total - 1), momentum);
                                 }
                                 return {mean, (squares / total + eps).rsqrt()};
                               });
  return {made[0], made[1]};
}

at::Tensor normalise(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                     const at::Tensor& mean, const at::Tensor& inverse, double) {
  return run_kernel("batch_norm_elemt", {input, or_undefined(weight), or_undefined(bias), mean, inverse}, {},
                    [](const Tensors& in) -> Tensors {
                      at::Tensor y = (in[0] - by_channel(in[3], in[0])) * by_channel(in[4], in[0]);
                      if (in[1].defined()) y = y * by_channel(in[1], y) + by_channel(in[2], y);
                      return {y.to(in[0].scalar_type())};
                    })
      .front();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> reduce_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& inverse,
    const OptionalTensor& weight, bool, bool wants_weight, bool wants_bias) {
  const auto made = run_kernel("batch_norm_backward_reduce", {gradient, input, mean, inverse, or_undefined(weight)}, {},
                               [wants_weight, wants_bias](const Tensors& in) -> Tensors {
                                 const at::Tensor dy = in[0].to(in[2].scalar_type());
                                 const at::Tensor sum = dy.sum(others(dy));
                                 const at::Tensor centred = (dy * (in[1] - by_channel(in[2], dy))).sum(others(dy));
                                 const auto type = in[4].defined() ? in[4].scalar_type() : sum.scalar_type();
                                 return {sum, centred, wants_weight ? (centred * in[3]).to(type) : at::Tensor(),
                                         wants_bias ? sum.to(type) : at::Tensor()};
                               });
  return {made[0], made[1], made[2], made[3]};
}

at::Tensor backward(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& mean,
                    const at::Tensor& inverse, const OptionalTensor& weight, const at::Tensor& sum,
                    const at::Tensor& centred, const at::Tensor& counts) {
  return run_kernel("batch_norm_backward_elemt",
                    {gradient, input, mean, inverse, or_undefined(weight), sum, centred, counts}, {},
                    [](const Tensors& in) -> Tensors {
                      const auto each = [&](const at::Tensor& values) { return by_channel(values, in[1]); };
                      const at::Tensor total = in[7].sum().to(in[2].scalar_type());
                      const at::Tensor slope = in[6] / total * in[3].square();
                      at::Tensor dx = in[0] - each(in[5] / total) - (in[1] - each(in[2])) * each(slope);
                      dx = dx * each(in[4].defined() ? in[3] * in[4] : in[3]);
                      return {dx.to(in[1].scalar_type())};
                    })
      .front();
}

}  // namespace

void register_batch_norm_kernels(torch::Library& operators) {
  operators.impl("batch_norm_stats", stats);
  operators.impl("batch_norm_gather_stats_with_counts", gather_stats);
  operators.impl("batch_norm_elemt", normalise);
  operators.impl("batch_norm_backward_reduce", reduce_backward);
  operators.impl("batch_norm_backward_elemt", backward);
}

}  // namespace levin::testing::sim
