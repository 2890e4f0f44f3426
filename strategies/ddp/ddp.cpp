#include <levin/strategies/ddp/ddp.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/error.h>
#include <levin/core/comm/communication_error.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/move_to_device.h>
#include <levin/core/nn/sparse_gradients.h>
#include <levin/strategies/comm/c10d_collective.h>
#include <levin/strategies/comm/c10d_error.h>
#include <levin/strategies/ddp/communication_hooks.h>
#include <levin/strategies/ddp/gradient_reducer.h>
#include <levin/strategies/ddp/sparse_gradients.h>
#include <levin/strategies/ddp/sync_batch_norm.h>
#include <levin/strategies/learning_rate_scale.h>
#include <levin/strategies/ranks/model_agreement.h>
#include <levin/strategies/ranks/window_reducer.h>

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <exception>
#include <utility>

namespace levin {
namespace {

/// Sets of parameters, toggled in turn, of which each keeps its buckets.
constexpr size_t kMostManualReducers = 4;

/// Runs backward with the reduction of gradients in it; what c10d throws becomes a CommunicationError, what user code
/// throws stays as it is.
template <class Backward>
void with_communication_errors(const Collective& ranks, Backward&& backward) {
  try {
    backward();
  } catch (const c10::DistError& error) {
    if (const auto* group = dynamic_cast<const C10dCollective*>(&ranks)) group->throw_if_aborted("combining gradients");
    throw CommunicationError("comm", fmt::format("combining gradients failed: {}", c10d_message(error)));
  }
}

}  // namespace

void DdpOptions::describe(Schema<DdpOptions>& schema) {
  using O = DdpOptions;
  schema.field("bucket_cap_mb", &O::bucket_cap_mb, "size of a gradient bucket (MiB)").above(0).at_most(1e6);
  schema.field("first_bucket_cap_mb", &O::first_bucket_cap_mb, "size of the first bucket (MiB)").above(0).at_most(1e6);
  schema.field("find_unused_parameters", &O::find_unused_parameters, "allow losses that leave out parameters");
  schema.field("static_graph", &O::static_graph, "promise that every step uses the same parameters");
  schema.field("broadcast_buffers", &O::broadcast_buffers, "broadcast rank 0's buffers before each step");
  schema.field("gradient_compression", &O::gradient_compression, "compression of gradients to float16 or bfloat16")
      .one_of(gradient_compressions());
  schema.field("sync", &O::sync, "quantity that replicas exchange; local_sgd, diloco: weights, every few steps",
               {{"gradients", ReplicaSync::kGradients},
                {"local_sgd", ReplicaSync::kLocalSgd},
                {"diloco", ReplicaSync::kDiloco}});
  schema.field("every", &O::every, "local_sgd, diloco: optimizer steps between two exchanges").at_least(1);
  schema.field("outer", &O::outer, "diloco: optimizer of the outer steps; null: sgd with its defaults");
  describe_rank_options(schema);
  describe_scale_lr(schema, "ranks");
}

Ddp::Ddp(const Options& options) : Ddp("ddp", options) {}

Ddp::Ddp(const std::string& family, const Options& options)
    : RankedStrategy(family, rank_options(options)),
      options_(options),
      local_steps_({.sync = options.sync,
                    .every = options.every,
                    .outer = options.outer.value_or(OuterOptimizerOptions()),
                    .average_buffers = options.broadcast_buffers}) {
  if (options.outer && options.sync != ReplicaSync::kDiloco)
    throw ConfigError("trainer.strategy.outer is the optimizer of sync: diloco; got another sync; hint: leave it out");
}

Ddp::~Ddp() = default;

StrategyCapabilities Ddp::capabilities() const {
  StrategyCapabilities capabilities = RankedStrategy::capabilities();
  if (steps_alone()) capabilities.manual_optimization = capabilities.iterable_datasets = false;
  return capabilities;
}

void Ddp::setup_environment(const StrategySetup& setup) {
  sync_batchnorm_ = setup.sync_batchnorm;
  const auto refuse = [](const char* option, const char* why, const char* valid) {
    throw ConfigError(fmt::format(
        "trainer.{} {} in every step, which ranks take alone with sync: local_sgd or diloco; {}", option, why, valid));
  };
  if (steps_alone() && sync_batchnorm_) refuse("sync_batchnorm", "asks all ranks", "hint: leave it out");
  if (steps_alone() && setup.mixed_type == at::kHalf)
    refuse("precision: 16-mixed", "looks for overflow on all ranks", "valid: bf16-mixed, 32-true, 64-true");
  RankedStrategy::setup_environment(setup);
  replicas_ = ranks().mesh().size(DeviceMesh::kContext) == 1
                  ? ranks().group_along({DeviceMesh::kReplicate})
                  : ranks().group_along({DeviceMesh::kReplicate, DeviceMesh::kContext});
}

void Ddp::teardown() {
  restart_steps(/*alone=*/false);
  records_ = false;
  parameters_.clear();
  sparse_.clear();
  uncombined_.clear();
  module_ = nullptr;
  local_steps_.end();
  replicas_.reset();
  RankedStrategy::teardown();
}

void Ddp::restart_steps(bool alone) {
  alone_ = alone;
  totals_.reset();
  reducers_.clear();
  if (steps_alone()) local_steps_.restart(alone ? nullptr : replicas_);
}

void Ddp::setup_module(Module& module) {
  move_to_device(module, root_device());
  module_ = &module;
  parameters_ = named_unique_parameters(module);
  sparse_ = parameters_with_sparse_gradients(module);
  has_buffers_ = !module.buffers().empty();
  reducers_.clear();
  if (ranks().world_size() == 1) return;
  require_same_model(module, collective());
  broadcast_model(module, ranks().process_group());
  if (steps_alone()) local_steps_.begin(module, replicas_);
}

const c10::intrusive_ptr<c10d::ProcessGroup>& Ddp::process_group() const {
  const auto* const group = dynamic_cast<const C10dCollective*>(replicas_.get());
  LEVIN_CHECK(group != nullptr, "several ranks are a group of c10d");
  return group->process_group();
}

std::unique_ptr<c10d::CommHookInterface> Ddp::communication_hook(const c10::intrusive_ptr<c10d::ProcessGroup>&) {
  return nullptr;
}

GradientReducerOptions Ddp::reduction(bool manual, bool has_hook) {
  GradientReducerOptions how;
  how.bucket_bytes = static_cast<int64_t>(options_.bucket_cap_mb * kBytesPerMib);
  how.first_bucket_bytes = static_cast<int64_t>(options_.first_bucket_cap_mb * kBytesPerMib);
  // Each of several losses reaches some of the parameters.
  how.find_unused_parameters = options_.find_unused_parameters || manual;
  how.may_find_none_unused = !options_.find_unused_parameters;
  how.static_graph = options_.static_graph && !manual;
  // On a device, the host would wait for what the reducer gives; a hook or float16 would round it.
  how.reduces_window = !manual && !has_hook && options_.gradient_compression == "none" && root_device().is_cpu();
  how.in_place =
      !has_hook && options_.gradient_compression == "none" && !how.find_unused_parameters && !how.static_graph;
  how.in_place_of_any_size = records_;
  how.sparse = sparse_;
  return how;
}

GraphSupport Ddp::graph_support() {
  if (steps_alone() && !is_alone())
    return {.recorder = nullptr, .why_not = "ranks exchange weights between steps (sync: local_sgd, diloco)"};
  if (!is_alone()) {
    if (sync_batchnorm_) return {.recorder = nullptr, .why_not = "sync_batchnorm asks other ranks inside of forward"};
    if (!std::exchange(records_, true)) reducers_.clear();
    const auto group = process_group();
    const std::string why_not = GradientReducer::why_not_in_place(
        named_unique_parameters(*module_), *group, reduction(/*manual=*/false, communication_hook(group) != nullptr));
    if (!why_not.empty()) {
      records_ = false;
      return {.recorder = nullptr, .why_not = "ranks combine gradients while backward runs: " + why_not};
    }
  }
  return accelerator_of(root_device()).make_graph_recorder(root_device());
}

GradientReducer& Ddp::reducer(Module& module, bool manual) {
  const auto fitting = std::find_if(reducers_.begin(), reducers_.end(),
                                    [this](const auto& reducer) { return reducer->fits(parameters_); });
  if (fitting != reducers_.end()) {
    std::rotate(reducers_.begin(), fitting, fitting + 1);
  } else {
    // Toggling makes the parameters of one optimizer after the other those that are trained.
    if (reducers_.size() >= (manual ? kMostManualReducers : 1)) reducers_.pop_back();
    parameters_ = named_unique_parameters(module);
    auto hook = communication_hook(process_group());
    GradientReducerOptions how = reduction(manual, hook != nullptr);
    how.configure = [this, hook = std::make_shared<decltype(hook)>(std::move(hook))](c10d::Reducer& made) {
      if (*hook != nullptr)
        made.register_comm_hook(std::move(*hook));
      else
        compress_gradients(made, process_group(), options_.gradient_compression);
    };
    reducers_.insert(reducers_.begin(),
                     std::make_unique<GradientReducer>(parameters_, process_group(), std::move(how)));
  }
  return *reducers_.front();
}

void Ddp::send_buffers(Module& module) {
  if (!options_.broadcast_buffers || !has_buffers_ || replicas_ == nullptr) return;
  const WaitingIn waiting(ranks().rank_status(), "broadcast of buffers");
  with_communication_errors(*replicas_, [&] { broadcast_buffers(module, process_group()); });
}

void Ddp::with_reduction_errors(const GradientReducer& gradients, const std::function<void()>& backward) {
  try {
    with_communication_errors(*replicas_, backward);
  } catch (const c10::Error&) {
    gradients.require_dense_gradients();
    throw;
  }
}

void Ddp::broadcast_optimizers(const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers) {
  if (steps_alone()) local_steps_.set_optimizers(optimizers);
}

void Ddp::prepare_evaluation(Module& module) {
  if (steps_alone())
    local_steps_.show_mean();
  else
    send_buffers(module);
}

StepOutput Ddp::step_alone(const Batch& batch, StepPhases& phases, const AccumulationWindow& window) {
  local_steps_.begin_step();
  StepOutput output = forward(batch, phases);
  if (!output.has_loss() && !window.sync) return output;
  // A rank that skips its batch steps with gradients of zero, so that all ranks count as many steps.
  StepOutput start = output;
  if (!output.has_loss()) {
    at::Tensor nothing = at::zeros({}, at::TensorOptions().device(root_device()));
    for (const auto& [name, parameter] : parameters_)
      if (parameter.requires_grad() && !sparse_.contains(parameter.unsafeGetTensorImpl()))
        nothing = nothing + parameter.reshape({-1}).slice(0, 0, 0).sum();
    // Of sparse ones alone it reaches none: they have no gradient then.
    if (!nothing.requires_grad()) nothing.set_requires_grad(true);
    start = StepOutput(nothing);
  }
  phases.before_backward(start);
  if (output.has_loss()) {
    phases.weigh(output, loss_share());
    phases.backward(start);
  } else {
    torch::autograd::backward({start.loss()});
  }
  const bool is_empty = phases.window_weight().on_host() == 0.0;
  totals_ = {.mean_weight = is_empty ? LossWeight(1) : phases.window_weight()};
  phases.after_backward();
  return output;
}

StepOutput Ddp::forward_backward(const Batch& batch, StepPhases& phases, const AccumulationWindow& window) {
  if (steps_alone() && !is_alone()) return step_alone(batch, phases, window);
  if (is_alone()) {
    StepOutput output = forward(batch, phases);
    if (!output.has_loss()) return output;
    phases.before_backward(output);
    phases.backward(output);
    totals_ = {.mean_weight = phases.window_weight()};
    phases.after_backward();
    return output;
  }
  GradientReducer& gradients = reducer(phases.module(), /*manual=*/false);
  if (window.sync) gradients.before_forward();
  send_buffers(phases.module());
  StepOutput output = [&] {
    const SyncBatchNormScope statistics(sync_batchnorm_ ? replicas_ : nullptr);
    return forward(batch, phases);
  }();
  if (sync_batchnorm_) require_loss_for_sync_batch_norm(output);
  if (!output.has_loss() && !window.sync) return output;
  // A batch that this rank alone skips counts as zero: the others wait for its part.
  StepOutput start = output.has_loss() ? output : StepOutput(gradients.zero_loss());
  phases.before_backward(start);
  if (output.has_loss()) phases.weigh(output, loss_share());
  start.loss() = gradients.before_backward(start.loss(), window, phases.window_weight());
  {
    const WaitingIn waiting(window.sync ? ranks().rank_status() : nullptr, "reduction of gradients");
    with_reduction_errors(gradients, [&] {
      if (output.has_loss())
        phases.backward(start);
      else
        torch::autograd::backward({start.loss()});
      gradients.after_backward(window.sync);
    });
    if (window.sync) average_sparse_gradients(gradients.sparse(), *replicas_);
  }
  if (window.sync)
    totals_ = gradients.reduces_window() ? gradients.window_totals()
                                         : reduce_window(window, phases.window_weight(), *replicas_, root_device());
  phases.after_backward();
  return output;
}

StepOutput Ddp::manual_step(const Batch& batch, StepPhases& phases) {
  if (is_alone()) return phases.forward(batch);
  send_buffers(phases.module());
  const SyncBatchNormScope statistics(sync_batchnorm_ ? replicas_ : nullptr);
  return phases.forward(batch);
}

void Ddp::manual_backward(const at::Tensor& loss, const BackwardOptions& options) {
  uncombined_.clear();
  if (is_alone()) return Strategy::manual_backward(loss, options);
  if (records_) {
    const auto gradients_now = [this] {
      std::vector<std::pair<const c10::TensorImpl*, uint32_t>> gradients;
      for (const auto& [name, parameter] : parameters_) {
        const at::Tensor& gradient = parameter.grad();
        gradients.emplace_back(gradient.unsafeGetTensorImpl(), gradient.defined() ? gradient._version() : 0);
      }
      return gradients;
    };
    const auto before = gradients_now();
    Strategy::manual_backward(loss, options);
    const auto after = gradients_now();
    for (size_t i = 0; i < parameters_.size() && options.sync_grad; ++i)
      if (before[i] != after[i]) uncombined_.push_back(parameters_[i].second);
    return;
  }
  GradientReducer& gradients = reducer(*module_, /*manual=*/true);
  if (options.sync_grad) gradients.before_forward();
  const at::Tensor start = gradients.before_backward(loss, {.sync = options.sync_grad}, {});
  const WaitingIn waiting(options.sync_grad ? ranks().rank_status() : nullptr, "reduction of gradients");
  with_reduction_errors(gradients, [&] { Strategy::manual_backward(start, options); });
  if (options.sync_grad) average_sparse_gradients(gradients.sparse(), *replicas_);
}

void Ddp::combine_gradients(const std::vector<at::Tensor>& parameters) {
  if (parameters.empty()) return;
  const WaitingIn waiting(ranks().rank_status(), "reduction of gradients");
  with_communication_errors(*replicas_,
                            [&] { GradientReducer::combine_in_place(parameters, parameters_, *process_group()); });
}

double Ddp::learning_rate_scale() const {
  return levin::learning_rate_scale(options_.scale_lr, rank_group().world_size() /
                                                           rank_group().mesh().size(DeviceMesh::kTensor) /
                                                           rank_group().mesh().size(DeviceMesh::kContext));
}

}  // namespace levin
