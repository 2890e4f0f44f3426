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
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <tuple>

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
    // A rank without elements gives numbers that its count, 0, takes out again.
    auto [own_mean, own_inverse] = count > 0
                                       ? at::batch_norm_stats(input, eps)
                                       : std::tuple(at::zeros({channels}, options), at::ones({channels}, options));
    const at::Tensor own = at::cat({own_mean, own_inverse, at::full({1}, static_cast<double>(count), options)});
    at::Tensor all = at::empty({ranks.world_size() * own.numel()}, options);
    ranks.all_gather(all, own)->wait();
    all = all.view({ranks.world_size(), own.numel()});
    const at::Tensor counts = all.select(1, 2 * channels).contiguous();
    // The kernel divides by the elements so far, rank by rank: ranks without any come last, which needs no wait for the
    // device.
    const at::Tensor order = (counts == 0).to(at::kInt).argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
    const at::Tensor ordered = all.index_select(0, order);
    // The kernel has counts of the running statistics' type, or of its first argument's: of 16 bits they overflow.
    const at::Tensor running_mean = as_type(running.mean, own.scalar_type());
    const at::Tensor running_variance = as_type(running.variance, own.scalar_type());
    const auto [mean, inverse] = at::batch_norm_gather_stats_with_counts(
        ordered, ordered.slice(1, 0, channels).contiguous(), ordered.slice(1, channels, 2 * channels).contiguous(),
        running_mean, running_variance, running.momentum, eps, ordered.select(1, 2 * channels).contiguous());
    if (!running_mean.is_same(running.mean)) {
      running.mean.copy_(running_mean);
      running.variance.copy_(running_variance);
    }
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
