#include <levin/strategies/pipeline/micro_batch_norm.h>

#include <levin/core/nn/batch_norm.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/module.h>

#include <memory>
#include <utility>

namespace levin {
namespace {

/// One row a micro-batch, in double precision.
at::Tensor rows(const std::vector<ChannelMoments>& parts, at::Tensor ChannelMoments::*member) {
  std::vector<at::Tensor> tensors;
  for (const ChannelMoments& part : parts) tensors.push_back(part.*member);
  return at::stack(tensors).to(parts.front().mean.device(), at::kDouble);
}

/// Combines means and variances as Chan, Golub and LeVeque do ("Updating formulae and a pairwise algorithm for
/// computing sample variances", 1979), which loses nothing where sums of squares would cancel. InstanceNorm keeps the
/// averages of what its examples have each, whatever their means.
ChannelMoments combine(const std::vector<ChannelMoments>& parts, bool is_instance_norm) {
  const at::Tensor counts = rows(parts, &ChannelMoments::count).unsqueeze(1);
  const at::Tensor means = rows(parts, &ChannelMoments::mean);
  const at::Tensor variances = rows(parts, &ChannelMoments::variance);
  const at::Tensor total = counts.sum();
  const at::Tensor mean = (means * counts).sum(0) / total;
  if (is_instance_norm) return {.mean = mean, .variance = (variances * counts).sum(0) / total, .count = total};
  // A single element has no unbiased variance, but no spread either.
  const at::Tensor spread = at::where(counts > 1, variances * (counts - 1), 0);
  const at::Tensor squares = (spread + (means - mean).square() * counts).sum(0);
  return {.mean = mean, .variance = squares / (total - 1), .count = total};
}

void update(at::Tensor& running, const at::Tensor& value, double momentum) {
  running.copy_(running.to(at::kDouble) * (1 - momentum) + value * momentum);
}

bool is_defined(const std::optional<at::Tensor>& tensor) { return tensor && tensor->defined(); }

}  // namespace

MicroBatchStatistics::MicroBatchStatistics(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (const auto& part : module.modules(/*include_self=*/true)) {
    visit_batch_norm(*part, [&](auto& layer) {
      if (!layer.running_mean.defined() || !layer.num_batches_tracked.defined()) return;
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
  const std::lock_guard lock(mutex_);
  Layer& layer = layers_[call.running_mean->unsafeGetTensorImpl()];
  layer.running_mean = *call.running_mean;
  layer.running_var = *call.running_var;
  layer.is_instance_norm = is_instance_norm;
  const size_t index = layer.calls_made[micro_batch]++;
  if (index == layer.calls.size()) layer.calls.push_back({.momentum = call.momentum});
  // An empty micro-batch has no statistics, but is one that the layer counts.
  if (call.input.numel() > 0) layer.calls[index].parts.push_back(std::move(moments));
}

void MicroBatchStatistics::apply() {
  const at::NoGradGuard no_grad;
  for (auto& [key, layer] : layers_) {
    if (layer.calls.empty()) continue;
    int64_t calls = 0;
    for (const WholeCall& call : layer.calls) {
      ++calls;
      if (call.parts.empty()) continue;
      // The layer took its momentum from num_batches_tracked, which has counted micro-batches.
      const double momentum =
          layer.is_cumulative ? 1 / static_cast<double>(layer.batches_before.item<int64_t>() + calls) : call.momentum;
      const ChannelMoments whole = combine(call.parts, layer.is_instance_norm);
      update(layer.running_mean, whole.mean, momentum);
      update(layer.running_var, whole.variance, momentum);
    }
    if (layer.num_batches_tracked.defined()) layer.num_batches_tracked.copy_(layer.batches_before + calls);
  }
  layers_.clear();
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
    const BatchNormCall stand_in = with_stand_ins(call);
    at::Tensor elements;
    at::Tensor output;
    if (outer_ == nullptr) {
      output = run_batch_norm(stand_in);
      elements = at::scalar_tensor(elements_of_a_channel(call.input), at::kDouble);
    } else {
      output = outer_->run(stand_in, &elements);
    }
    record(call, /*is_instance_norm=*/false, stand_in, elements);
    if (count != nullptr) *count = elements;
    return output;
  }

  at::Tensor run_instance_norm(const BatchNormCall& call) override {
    if (!keeps_statistics(call)) return levin::run_instance_norm(call);
    const BatchNormCall stand_in = with_stand_ins(call);
    at::Tensor output = levin::run_instance_norm(stand_in);
    record(call, /*is_instance_norm=*/true, stand_in, at::scalar_tensor(call.input.size(0), at::kDouble));
    return output;
  }

  std::shared_ptr<BatchNormRunner> for_recompute() override {
    // What the first run saved for backward, the second saves too: the stand-ins are among it.
    return std::make_shared<MicroBatchNorm>(outer_ == nullptr ? nullptr : outer_->for_recompute(), nullptr, 0);
  }

 private:
  static bool keeps_statistics(const BatchNormCall& call) {
    return call.training && is_defined(call.running_mean) && is_defined(call.running_var);
  }

  static BatchNormCall with_stand_ins(const BatchNormCall& call) {
    BatchNormCall stand_in = call;
    // Zeros: with momentum 1 what was there is multiplied by 0, which not all numbers survive.
    stand_in.running_mean = at::zeros_like(*call.running_mean);
    stand_in.running_var = at::zeros_like(*call.running_var);
    stand_in.momentum = 1;
    return stand_in;
  }

  static int64_t elements_of_a_channel(const at::Tensor& input) {
    return input.numel() == 0 ? 0 : input.numel() / input.size(1);
  }

  void record(const BatchNormCall& call, bool is_instance_norm, const BatchNormCall& stand_in,
              const at::Tensor& count) {
    if (statistics_ == nullptr) return;
    statistics_->record(call, is_instance_norm, micro_batch_,
                        {.mean = *stand_in.running_mean, .variance = *stand_in.running_var, .count = count});
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
