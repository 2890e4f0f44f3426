#include <levin/strategies/pipeline/micro_batch_norm.h>

#include <levin/core/base/released_storage.h>
#include <levin/core/nn/batch_norm.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

namespace levin {
namespace {

/// Combines the rows of some micro-batches, [micro-batch, channel] in double precision, as Chan, Golub and LeVeque do
/// ("Updating formulae and a pairwise algorithm for computing sample variances", 1979), which loses nothing where sums
/// of squares would cancel. InstanceNorm keeps the averages of what its examples have each, whatever their means.
ChannelMoments combine(const ChannelMoments& rows, bool is_instance_norm) {
  const at::Tensor& counts = rows.count;
  const at::Tensor total = counts.sum(0);
  const at::Tensor mean = (rows.mean * counts).sum(0) / total;
  if (is_instance_norm) return {.mean = mean, .variance = (rows.variance * counts).sum(0) / total, .count = total};
  // A single element has no unbiased variance, but no spread either.
  const at::Tensor spread = at::where(counts > 1, rows.variance * (counts - 1), 0);
  const at::Tensor squares = (spread + (rows.mean - mean).square() * counts).sum(0);
  return {.mean = mean, .variance = squares / (total - 1), .count = total};
}

/// `values` and `momentum` have the channels of all the running statistics, one after the other.
void update(std::vector<at::Tensor> running, const at::Tensor& values, const at::Tensor& momentum) {
  std::vector<int64_t> channels;
  for (const at::Tensor& tensor : running) channels.push_back(tensor.numel());
  const at::Tensor updated = at::cat(running).to(at::kDouble) * (1 - momentum) + values * momentum;
  at::_foreach_copy_(running, updated.split_with_sizes(channels));
}

bool is_defined(const std::optional<at::Tensor>& tensor) { return tensor && tensor->defined(); }

}  // namespace

MicroBatchStatistics::MicroBatchStatistics(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (const auto& part : module.modules(/*include_self=*/true)) {
    // Not checked, as the rest of a constructor: nobody else knows the object yet.
    visit_batch_norm(*part, [this](auto& layer) LEVIN_NO_THREAD_SAFETY_ANALYSIS {
      if (!layer.running_mean.defined() || !layer.num_batches_tracked.defined()) return;
      if (is_released(layer.num_batches_tracked)) return;  // of another stage
      layers_.try_emplace(layer.running_mean.unsafeGetTensorImpl(),
                          Layer{.running_mean = layer.running_mean,
                                .running_var = layer.running_var,
                                .num_batches_tracked = layer.num_batches_tracked,
                                .batches_before = layer.num_batches_tracked.clone(),
                                .is_cumulative = !layer.options.momentum().has_value()});
    });
  }
}

void MicroBatchStatistics::record(const BatchNormCall& call, bool is_instance_norm, int64_t micro_batch,
                                  ChannelMoments moments) {
  const MutexLock lock(mutex_);
  Layer& layer = layers_[call.running_mean->unsafeGetTensorImpl()];
  layer.running_mean = *call.running_mean;
  layer.running_var = *call.running_var;
  layer.is_instance_norm = is_instance_norm;
  const size_t index = layer.calls_made[micro_batch]++;
  if (index == layer.calls.size()) layer.calls.push_back({.momentum = call.momentum});
  // A micro-batch without elements has no statistics, but is one that the layer counts.
  if (moments.count.defined()) layer.calls[index].parts.push_back(std::move(moments));
}

void MicroBatchStatistics::apply() {
  const at::NoGradGuard no_grad;
  const MutexLock lock(mutex_);
  for (size_t call = 0; update_call(call); ++call) {
  }
  for (auto& [key, layer] : layers_)
    if (layer.num_batches_tracked.defined() && !layer.calls.empty())
      layer.num_batches_tracked.copy_(layer.batches_before + static_cast<int64_t>(layer.calls.size()));
  layers_.clear();
}

bool MicroBatchStatistics::update_call(size_t call) {
  // Layers are small and many: those that are alike go through the arithmetic as one.
  using Likeness = std::tuple<c10::DeviceType, c10::DeviceIndex, size_t, bool>;
  std::map<Likeness, std::vector<Layer*>> groups;
  bool any = false;
  for (auto& [key, layer] : layers_) {
    if (call >= layer.calls.size()) continue;
    any = true;
    const size_t parts = layer.calls[call].parts.size();
    const at::Device device = layer.running_mean.device();
    if (parts > 0) groups[{device.type(), device.index(), parts, layer.is_instance_norm}].push_back(&layer);
  }
  for (const auto& [likeness, layers] : groups) update_layers(layers, call);
  return any;
}

void MicroBatchStatistics::update_layers(const std::vector<Layer*>& layers, size_t call) {
  std::vector<at::Tensor> running_means;
  std::vector<at::Tensor> running_vars;
  // Made on the device: the host neither reads nor copies, which it would wait for.
  std::vector<at::Tensor> momentum;
  for (Layer* layer : layers) {
    running_means.push_back(layer->running_mean);
    running_vars.push_back(layer->running_var);
    // The layer itself would take it from num_batches_tracked, which has counted micro-batches.
    const at::Tensor own =
        layer->is_cumulative
            ? (layer->batches_before + (1 + static_cast<int64_t>(call))).to(at::kDouble).reciprocal()
            : at::full({}, layer->calls[call].momentum, layer->running_mean.options().dtype(at::kDouble));
    momentum.push_back(own.expand({layer->running_mean.numel()}));
  }
  std::vector<at::Tensor> means;
  std::vector<at::Tensor> variances;
  std::vector<at::Tensor> counts;
  const size_t micro_batches = layers.front()->calls[call].parts.size();
  for (size_t i = 0; i < micro_batches; ++i) {
    for (const Layer* layer : layers) {
      const ChannelMoments& part = layer->calls[call].parts[i];
      means.push_back(part.mean);
      variances.push_back(part.variance);
      counts.push_back(part.count.expand_as(part.mean));
    }
  }
  const auto rows = [&](const std::vector<at::Tensor>& tensors) {
    return at::cat(tensors).to(at::kDouble).view({static_cast<int64_t>(micro_batches), -1});
  };
  const ChannelMoments whole = combine({.mean = rows(means), .variance = rows(variances), .count = rows(counts)},
                                       layers.front()->is_instance_norm);
  const at::Tensor factors = at::cat(momentum);
  update(std::move(running_means), whole.mean, factors);
  update(std::move(running_vars), whole.variance, factors);
}

/// Hides the running statistics from the layers. With momentum 1, what they write to those that stand in is the mean
/// and the unbiased variance of the micro-batch.
class MicroBatchNorm : public BatchNormRunner {
 public:
  /// `statistics` is nullptr where the forward is run again. `outer` runs the layers, unless it is nullptr.
  MicroBatchNorm(std::shared_ptr<BatchNormRunner> outer, MicroBatchStatistics* statistics, int64_t micro_batch)
      : outer_(std::move(outer)), statistics_(statistics), micro_batch_(micro_batch) {}

  const std::shared_ptr<BatchNormRunner>& outer() const { return outer_; }

  at::Tensor run(const BatchNormCall& call, at::Tensor* count) override {
    if (!keeps_statistics(call)) return outer_ == nullptr ? run_batch_norm(call) : outer_->run(call, count);
    const BatchNormCall own = with_own_statistics(call);
    at::Tensor elements;
    at::Tensor output;
    if (outer_ == nullptr) {
      output = run_batch_norm(own);
      elements = count_of(call.input, call.input.numel() / std::max<int64_t>(call.input.size(1), 1));
    } else {
      output = outer_->run(own, &elements);
    }
    record(call, /*is_instance_norm=*/false, own, elements);
    if (count != nullptr) *count = elements;
    return output;
  }

  at::Tensor run_instance_norm(const BatchNormCall& call) override {
    if (!keeps_statistics(call)) return levin::run_instance_norm(call);
    const BatchNormCall own = with_own_statistics(call);
    at::Tensor output = levin::run_instance_norm(own);
    record(call, /*is_instance_norm=*/true, own, count_of(call.input, call.input.size(0)));
    return output;
  }

  std::shared_ptr<BatchNormRunner> for_recompute() override {
    // What the first run saved for backward, the second saves too: those tensors are among it.
    return std::make_shared<MicroBatchNorm>(outer_ == nullptr ? nullptr : outer_->for_recompute(), nullptr, 0);
  }

 private:
  static bool keeps_statistics(const BatchNormCall& call) {
    return call.training && is_defined(call.running_mean) && is_defined(call.running_var);
  }

  static BatchNormCall with_own_statistics(const BatchNormCall& call) {
    BatchNormCall own = call;
    // Zeros: with momentum 1 what was there is multiplied by 0, which not all numbers survive.
    own.running_mean = at::zeros_like(*call.running_mean);
    own.running_var = at::zeros_like(*call.running_var);
    own.momentum = 1;
    return own;
  }

  /// Undefined where the input has no elements.
  static at::Tensor count_of(const at::Tensor& input, int64_t elements_of_a_channel) {
    if (input.numel() == 0) return at::Tensor();
    return at::full({}, elements_of_a_channel, input.options().dtype(at::kDouble));
  }

  void record(const BatchNormCall& call, bool is_instance_norm, const BatchNormCall& own, const at::Tensor& count) {
    if (statistics_ == nullptr) return;
    statistics_->record(call, is_instance_norm, micro_batch_,
                        {.mean = *own.running_mean, .variance = *own.running_var, .count = count});
  }

  std::shared_ptr<BatchNormRunner> outer_;
  MicroBatchStatistics* statistics_;
  int64_t micro_batch_;
};

namespace {

std::shared_ptr<BatchNormRunner> make_runner(MicroBatchStatistics& statistics, int64_t micro_batch) {
  std::shared_ptr<BatchNormRunner> outer = BatchNormScope::current();
  if (const auto* same = dynamic_cast<const MicroBatchNorm*>(outer.get())) outer = same->outer();
  return std::make_shared<MicroBatchNorm>(std::move(outer), &statistics, micro_batch);
}

}  // namespace

MicroBatchNormScope::MicroBatchNormScope(MicroBatchStatistics& statistics, int64_t micro_batch)
    : scope_(make_runner(statistics, micro_batch)) {}

}  // namespace levin
