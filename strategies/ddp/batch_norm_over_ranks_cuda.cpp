#include <levin/strategies/ddp/batch_norm_over_ranks.h>

#include <levin/core/comm/collective.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm_backward_elemt.h>
#include <ATen/ops/batch_norm_backward_reduce.h>
#include <ATen/ops/batch_norm_elemt.h>
#include <ATen/ops/batch_norm_gather_stats_with_counts.h>
#include <ATen/ops/batch_norm_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

namespace levin {
namespace {

/// The kernels that LibTorch has for this very purpose.
class CudaBatchNormOverRanks : public BatchNormOverRanks {
 public:
  BatchStatistics statistics(const at::Tensor& input, double eps, RunningStatistics& running,
                             Collective& ranks) const override {
    const int64_t channels = input.size(1);
    const int64_t count = channels == 0 ? 0 : input.numel() / channels;
    const auto options = input.options().dtype(arithmetic_type(input)).memory_format(std::nullopt);
    at::Tensor own = at::zeros({2 * channels + 1}, options);
    if (count > 0) {
      const auto [mean, inverse] = at::batch_norm_stats(input, eps);
      own = at::cat({mean, inverse, at::full({1}, static_cast<double>(count), options)});
    } else {
      own.slice(0, channels, 2 * channels).fill_(1);  // of which the kernel takes the reciprocal
    }
    at::Tensor all = at::empty({ranks.world_size() * own.numel()}, options);
    ranks.all_gather(all, own)->wait();
    all = all.view({ranks.world_size(), own.numel()});
    const at::Tensor counts = all.select(1, 2 * channels).contiguous();
    // The kernel adds up rank by rank and divides by the sum of their counts so far: empty batches come last. Leaving
    // them out would wait for the device, to know how many are left.
    const at::Tensor order = (counts > 0).to(at::kInt).argsort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
    const at::Tensor filled_first = all.index_select(0, order);
    at::Tensor ordered_counts = filled_first.select(1, 2 * channels).contiguous();
    if (running.mean.defined()) ordered_counts = ordered_counts.to(running.mean.scalar_type());
    const auto [mean, inverse] =
        at::batch_norm_gather_stats_with_counts(input, filled_first.slice(1, 0, channels).contiguous(),
                                                filled_first.slice(1, channels, 2 * channels).contiguous(),
                                                running.mean, running.variance, running.momentum, eps, ordered_counts);
    return {.mean = mean, .spread = inverse, .counts = counts};
  }

  at::Tensor normalise(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                       const BatchStatistics& statistics, double eps) const override {
    if (input.numel() == 0) return at::empty_like(input);
    return at::batch_norm_elemt(input, weight, bias, statistics.mean, statistics.spread, eps);
  }

  BatchNormGradients backward(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
                              const BatchStatistics& statistics, double /*eps*/, bool input_needs_gradient,
                              Collective& ranks) const override {
    const int64_t channels = input.size(1);
    const at::Tensor dy = gradient.contiguous(input.suggest_memory_format());
    at::Tensor sum_dy = at::zeros({channels}, statistics.mean.options());
    at::Tensor sum_dy_centred = sum_dy;
    BatchNormGradients result;
    if (input.numel() > 0) {
      std::tie(sum_dy, sum_dy_centred, result.weight, result.bias) =
          at::batch_norm_backward_reduce(dy, input, statistics.mean, statistics.spread, weight, input_needs_gradient,
                                         /*weight_g=*/weight.defined(), /*bias_g=*/weight.defined());
    } else if (weight.defined()) {
      result.weight = at::zeros_like(weight);
      result.bias = at::zeros_like(weight);
    }
    if (!input_needs_gradient) return result;

    const at::Tensor sums = at::cat({sum_dy, sum_dy_centred});
    ranks.all_reduce(sums, ReduceOp::kSum)->wait();
    result.input = input.numel() == 0
                       ? at::empty_like(input)
                       : at::batch_norm_backward_elemt(
                             dy, input, statistics.mean, statistics.spread,
                             as_type(weight, statistics.mean.scalar_type()), sums.slice(0, 0, channels).contiguous(),
                             sums.slice(0, channels).contiguous(), statistics.counts.to(at::kInt));
    return result;
  }
};

}  // namespace

const BatchNormOverRanks& cuda_batch_norm_over_ranks() {
  static const CudaBatchNormOverRanks instance;
  return instance;
}

}  // namespace levin
