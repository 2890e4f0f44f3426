#include <levin/callbacks/running_statistics.h>

#include <levin/core/base/released_storage.h>
#include <levin/core/comm/collective.h>
#include <levin/core/nn/batch_norm.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

namespace levin {
namespace {

/// A layer that averages over all batches alike while this lives.
class AveragingLayer {
 public:
  template <class BatchNorm>
  explicit AveragingLayer(BatchNorm& layer)
      : mean(layer.running_mean),
        variance(layer.running_var),
        batches(layer.num_batches_tracked),
        set_momentum_([&layer](std::optional<double> momentum) { layer.options.momentum(momentum); }),
        momentum_(layer.options.momentum()) {
    layer.reset_running_stats();
    set_momentum_(std::nullopt);
  }
  AveragingLayer(AveragingLayer&& other) noexcept
      : mean(other.mean),
        variance(other.variance),
        batches(other.batches),
        set_momentum_(std::exchange(other.set_momentum_, nullptr)),
        momentum_(other.momentum_) {}
  AveragingLayer& operator=(AveragingLayer&&) = delete;
  ~AveragingLayer() {
    if (set_momentum_) set_momentum_(momentum_);
  }

  at::Tensor mean, variance, batches;

 private:
  std::function<void(std::optional<double>)> set_momentum_;
  std::optional<double> momentum_;
};

/// Ranks may have had different numbers of batches.
void average_over_ranks(std::vector<AveragingLayer>& layers, Collective& collective) {
  std::vector<at::Tensor> parts;
  for (const AveragingLayer& layer : layers) {
    const at::Tensor batches = layer.batches.to(at::kDouble);
    parts.push_back((layer.mean * batches).reshape({-1}));
    parts.push_back((layer.variance * batches).reshape({-1}));
    parts.push_back(batches.reshape({-1}));
  }
  at::Tensor sums = at::cat(parts);
  collective.all_reduce(sums, ReduceOp::kSum)->wait();
  int64_t offset = 0;
  const auto next = [&](const at::Tensor& like) {
    const at::Tensor sum = sums.narrow(0, offset, like.numel());
    offset += like.numel();
    return sum.view(like.sizes());
  };
  for (AveragingLayer& layer : layers) {
    const at::Tensor mean = next(layer.mean);
    const at::Tensor variance = next(layer.variance);
    const at::Tensor batches = next(layer.batches).clamp_min(1);
    layer.mean.copy_(mean / batches);
    layer.variance.copy_(variance / batches);
    layer.batches.copy_(batches);
  }
}

}  // namespace

void recompute_running_statistics(torch::nn::Module& module, Collective& collective,
                                  const std::function<void()>& run_batches) {
  const at::NoGradGuard no_grad;
  std::vector<AveragingLayer> layers;
  std::unordered_set<const torch::nn::Module*> seen;  // one that is part of two modules is listed twice
  for (const auto& part : module.modules(/*include_self=*/true)) {
    // One that the user froze keeps what it has.
    if (!part->is_training() || !seen.insert(part.get()).second) continue;
    visit_batch_norm(*part, [&](auto& layer) {
      if (layer.options.track_running_stats()) layers.emplace_back(layer);
    });
  }
  if (layers.empty()) return;
  run_batches();
  if (collective.world_size() > 1) average_over_ranks(layers, collective);
}

bool has_all_running_statistics(torch::nn::Module& module) {
  bool has_all = true;
  for (const auto& part : module.modules(/*include_self=*/true))
    visit_batch_norm(*part, [&](auto& layer) {
      if (layer.options.track_running_stats() && is_released(layer.running_mean)) has_all = false;
    });
  return has_all;
}

}  // namespace levin
