#include <levin/strategies/ddp/sync_batch_norm.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>
#include <levin/core/nn/forward_context.h>
#include <levin/strategies/ddp/batch_norm_over_ranks.h>

#include <ATen/core/ivalue.h>
#include <ATen/ops/batch_norm_native.h>
#include <ATen/ops/instance_norm_native.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace levin {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The ranks of the innermost scope. Only forward reads it: backward may run on another thread. A forward that runs
/// again there finds it through its ForwardContext.
thread_local std::shared_ptr<Collective> active_ranks;

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
};

class SyncBatchNorm : public torch::autograd::Function<SyncBatchNorm> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const OptionalTensor& weight,
                            const OptionalTensor& bias, Call call) {
    const BatchNormOverRanks& kernels = BatchNormOverRanks::of(input);
    const at::Tensor dense = input.contiguous(input.suggest_memory_format());
    const BatchStatistics statistics = kernels.statistics(dense, call.eps, call.running, *call.ranks);
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

at::Tensor batch_norm(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                      const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
                      double momentum, double eps, bool cudnn_enabled) {
  // What LibTorch refuses, it refuses here too.
  const bool is_valid = input.is_floating_point() && input.dim() >= 2 && fits(weight, input.size(1)) &&
                        fits(bias, input.size(1)) && fits(running_mean, input.size(1)) &&
                        fits(running_var, input.size(1));
  if (active_ranks == nullptr || !training || !is_valid)
    return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps,
                                  cudnn_enabled);
  return SyncBatchNorm::apply(
      input, weight, bias,
      Call{.running = {.mean = or_undefined(running_mean), .variance = or_undefined(running_var), .momentum = momentum},
           .eps = eps,
           .ranks = active_ranks});
}

/// LibTorch computes it with batch_norm, each example a channel of its own.
at::Tensor instance_norm(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                         const OptionalTensor& running_mean, const OptionalTensor& running_var, bool use_input_stats,
                         double momentum, double eps, bool cudnn_enabled) {
  const SyncBatchNormScope alone(nullptr);
  return at::native::instance_norm(input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps,
                                   cudnn_enabled);
}

/// Registered at run time, so that programs without a scope keep LibTorch's kernels; and for good, since other threads
/// may be calling them.
void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
      auto* library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
      library->impl("batch_norm", TORCH_FN(batch_norm));
      library->impl("instance_norm", TORCH_FN(instance_norm));
    }
    add_forward_context([]() -> ForwardContext {
      if (active_ranks == nullptr) return nullptr;
      return [ranks = active_ranks] { return std::make_shared<SyncBatchNormScope>(ranks); };
    });
  });
}

}  // namespace

SyncBatchNormScope::SyncBatchNormScope(std::shared_ptr<Collective> collective) {
  const bool alone = collective == nullptr || collective->world_size() == 1;
  if (!alone) install();
  previous_ = std::exchange(active_ranks, alone ? nullptr : std::move(collective));
}

SyncBatchNormScope::~SyncBatchNormScope() { active_ranks = std::move(previous_); }

}  // namespace levin
