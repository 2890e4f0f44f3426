#include <levin/strategies/ddp/batch_norm_over_ranks.h>

#include <levin/core/comm/collective.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/zeros.h>

#include <vector>

namespace levin {
namespace {

/// One number a channel, shaped to go with the input.
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = values.size(0);
  return values.view(shape);
}

void update_running(at::Tensor& running, const at::Tensor& value, double momentum) {
  if (running.defined()) running.copy_(running.to(at::kDouble) * (1 - momentum) + value * momentum);
}

class CpuBatchNormOverRanks : public BatchNormOverRanks {
 public:
  // Ranks exchange means, variances and counts in double precision. Each rank combines them, in the same order, as
  // Chan, Golub and LeVeque do ("Updating formulae and a pairwise algorithm for computing sample variances", 1979),
  // which loses nothing where sums of squares would cancel.
  BatchStatistics statistics(const at::Tensor& input, double /*eps*/, RunningStatistics& running,
                             Collective& ranks) const override {
    const int64_t channels = input.size(1);
    const int64_t count = channels == 0 ? 0 : input.numel() / channels;
    const at::ScalarType type = arithmetic_type(input);
    const auto in_double = at::TensorOptions(input.device()).dtype(at::kDouble);
    at::Tensor own = at::zeros({2 * channels + 1}, in_double);
    if (count > 0) {
      const auto [mean, variance] = at::batch_norm_update_stats(input.to(type), {}, {}, /*momentum=*/0);
      own.slice(0, 0, channels).copy_(mean);
      own.slice(0, channels, 2 * channels).copy_(variance);
      own[2 * channels].fill_(static_cast<double>(count));
    }
    at::Tensor all = at::empty({ranks.world_size() * own.numel()}, in_double);
    ranks.all_gather(all, own)->wait();
    all = all.view({ranks.world_size(), own.numel()});
    const at::Tensor means = all.slice(1, 0, channels);
    const at::Tensor variances = all.slice(1, channels, 2 * channels);
    const at::Tensor counts = all.slice(1, 2 * channels);

    const at::Tensor total = counts.sum();
    const at::Tensor mean = (means * counts).sum(0) / total;
    const at::Tensor squares = ((variances + (means - mean).square()) * counts).sum(0);
    update_running(running.mean, mean, running.momentum);
    update_running(running.variance, squares / (total - 1), running.momentum);
    return {.mean = mean.to(type), .spread = (squares / total).to(type), .counts = counts.flatten().contiguous()};
  }

  at::Tensor normalise(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                       const BatchStatistics& statistics, double eps) const override {
    if (input.numel() == 0) return at::empty_like(input);
    // Normalising with given statistics is what evaluation does.
    const at::ScalarType type = arithmetic_type(input);
    const auto [output, unused_mean, unused_spread] =
        at::native_batch_norm(input.to(type), as_type(weight, type), as_type(bias, type), statistics.mean,
                              statistics.spread, /*training=*/false, /*momentum=*/0, eps);
    return output.to(input.scalar_type());
  }

  BatchNormGradients backward(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
                              const BatchStatistics& statistics, double eps, bool input_needs_gradient,
                              Collective& ranks) const override {
    const int64_t channels = input.size(1);
    const at::ScalarType type = arithmetic_type(input);
    const at::Tensor x = input.to(type);
    const at::Tensor dy = gradient.to(type).contiguous(x.suggest_memory_format());
    // Per channel, the sums of dy and of dy times the normalised input.
    at::Tensor sum_dy = at::zeros({channels}, x.options());
    at::Tensor sum_dy_normalised = sum_dy;
    if (x.numel() > 0) {
      const auto sums = at::native_batch_norm_backward(dy, x, as_type(weight, type), statistics.mean, statistics.spread,
                                                       {}, {}, /*train=*/false, eps, {false, true, true});
      sum_dy_normalised = std::get<1>(sums);
      sum_dy = std::get<2>(sums);
    }
    BatchNormGradients result{.weight = sum_dy_normalised, .bias = sum_dy};
    if (weight.defined()) {
      result.weight = result.weight.to(weight.scalar_type());
      result.bias = result.bias.to(weight.scalar_type());
    }
    if (!input_needs_gradient) return result;

    at::Tensor sums = at::cat({sum_dy.to(at::kDouble), sum_dy_normalised.to(at::kDouble)});
    ranks.all_reduce(sums, ReduceOp::kSum)->wait();
    if (x.numel() == 0) {
      result.input = at::empty_like(input);
      return result;
    }
    // dx = scale * (dy - mean(dy) - normalised * mean(dy * normalised)), in three passes over the input.
    const at::Tensor means = sums / statistics.counts.sum();
    const at::Tensor inverse = (statistics.spread.to(at::kDouble) + eps).rsqrt();
    const at::Tensor scale = weight.defined() ? inverse * weight.to(at::kDouble) : inverse;
    const at::Tensor shift = -scale * means.slice(0, 0, channels);
    const at::Tensor slope = -scale * inverse * means.slice(0, channels);
    at::Tensor dx = at::addcmul(by_channel(shift.to(type), x), dy, by_channel(scale.to(type), x));
    dx.addcmul_(x - by_channel(statistics.mean, x), by_channel(slope.to(type), x));
    result.input = dx.to(input.scalar_type());
    return result;
  }
};

}  // namespace

const BatchNormOverRanks& cpu_batch_norm_over_ranks() {
  static const CpuBatchNormOverRanks instance;
  return instance;
}

}  // namespace levin
