#include <levin/strategies/ddp/sync_batch_norm.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>
#include <levin/core/interfaces/step_output.h>
#include <levin/strategies/ddp/batch_norm_over_ranks.h>

#include <ATen/core/ivalue.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <memory>
#include <optional>
#include <utility>

namespace levin {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Carries the ranks from forward to backward.
struct RanksHolder : torch::CustomClassHolder {
  explicit RanksHolder(std::shared_ptr<Collective> held) : ranks(std::move(held)) {}
  std::shared_ptr<Collective> ranks;
};

at::Tensor or_undefined(const OptionalTensor& tensor) { return tensor.value_or(at::Tensor()); }

struct Call {
  RunningStatistics running;
  double eps;
  std::shared_ptr<Collective> ranks;
  at::Tensor* count;
};

class SyncBatchNorm : public torch::autograd::Function<SyncBatchNorm> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const OptionalTensor& weight,
                            const OptionalTensor& bias, Call call) {
    const BatchNormOverRanks& kernels = BatchNormOverRanks::of(input);
    const at::Tensor dense = input.contiguous(input.suggest_memory_format());
    const BatchStatistics statistics = kernels.statistics(dense, call.eps, call.running, *call.ranks);
    if (call.count != nullptr) *call.count = statistics.counts.sum();
    context->save_for_backward({dense, or_undefined(weight), statistics.mean, statistics.spread, statistics.counts});
    context->saved_data["eps"] = call.eps;
    context->saved_data["ranks"] = c10::IValue::make_capsule(c10::make_intrusive<RanksHolder>(std::move(call.ranks)));
    return kernels.normalise(dense, or_undefined(weight), or_undefined(bias), statistics, call.eps);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (c10::GradMode::is_enabled())
      throw Error("sync_batchnorm",
                  "gradients of gradients do not pass through BatchNorm while trainer.sync_batchnorm is on; hint: turn "
                  "it off, or use another normalisation where create_graph is needed");
    const variable_list saved = context->get_saved_variables();
    const auto holder = c10::static_intrusive_pointer_cast<RanksHolder>(context->saved_data["ranks"].toCapsule());
    const at::Tensor& weight = saved[1];
    auto result = BatchNormOverRanks::of(saved[0]).backward(
        gradients[0], saved[0], weight, {.mean = saved[2], .spread = saved[3], .counts = saved[4]},
        context->saved_data["eps"].toDouble(), context->needs_input_grad(0), *holder->ranks);
    const bool affine = weight.defined();
    return {result.input, affine ? result.weight : at::Tensor(), affine ? result.bias : at::Tensor(), at::Tensor()};
  }
};

/// Whether a tensor is undefined or has one element a channel.
bool fits(const OptionalTensor& tensor, int64_t channels) {
  return !tensor || !tensor->defined() || tensor->numel() == channels;
}

class SyncBatchNormRunner : public BatchNormRunner, public std::enable_shared_from_this<SyncBatchNormRunner> {
 public:
  explicit SyncBatchNormRunner(std::shared_ptr<Collective> ranks) : ranks_(std::move(ranks)) {}

  at::Tensor run(const BatchNormCall& call, at::Tensor* count) override {
    // What LibTorch refuses, it refuses here too.
    const at::Tensor& input = call.input;
    const bool is_valid = input.is_floating_point() && input.dim() >= 2 && fits(call.weight, input.size(1)) &&
                          fits(call.bias, input.size(1)) && fits(call.running_mean, input.size(1)) &&
                          fits(call.running_var, input.size(1));
    if (!call.training || !is_valid) return run_batch_norm(call);
    return SyncBatchNorm::apply(input, call.weight, call.bias,
                                Call{.running = {.mean = or_undefined(call.running_mean),
                                                 .variance = or_undefined(call.running_var),
                                                 .momentum = call.momentum},
                                     .eps = call.eps,
                                     .ranks = ranks_,
                                     .count = count});
  }
  std::shared_ptr<BatchNormRunner> for_recompute() override { return shared_from_this(); }

 private:
  std::shared_ptr<Collective> ranks_;
};

std::shared_ptr<BatchNormRunner> make_runner(std::shared_ptr<Collective> collective) {
  if (collective == nullptr || collective->world_size() == 1) return nullptr;
  return std::make_shared<SyncBatchNormRunner>(std::move(collective));
}

}  // namespace

SyncBatchNormScope::SyncBatchNormScope(std::shared_ptr<Collective> collective)
    : scope_(make_runner(std::move(collective))) {}

void require_loss_for_sync_batch_norm(const StepOutput& output) {
  if (!output.has_loss())
    throw Error(
        "module",
        "training_step returned no loss, but with sync_batchnorm the other ranks wait for this one in backward; "
        "hint: return a loss that is a number for every batch, with .weight = 0 where there is nothing to learn from");
}

}  // namespace levin
