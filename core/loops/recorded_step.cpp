#include <levin/core/loops/recorded_step.h>

#include <levin/core/base/log.h>
#include <levin/core/base/recording.h>
#include <levin/core/connectors/error_context.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/optim/fused_optimizer.h>
#include <levin/core/optim/optimizer_capabilities.h>
#include <levin/core/precision/precision.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>

namespace levin {
namespace {

/// As many as LibTorch's kernels and allocator may need to settle.
constexpr int64_t kOrdinarySteps = 3;
/// What changes oftener than this changes all the time.
constexpr int64_t kMostRecordings = 20;

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.scalar_type() == b.scalar_type() && a.device() == b.device();
}

}  // namespace

struct RecordedStep::Graphs {
  std::unique_ptr<RecordedGraph> forward;
  std::unique_ptr<RecordedGraph> backward;
  std::unique_ptr<RecordedGraph> unscale;  ///< nullptr without loss scaling
  std::unique_ptr<RecordedGraph> update;
  std::unique_ptr<RecordedGraph> end_window;  ///< nullptr without loss scaling
};

/// What code that does not run again depended on.
struct RecordedStep::Conditions {
  struct Held {
    at::Tensor tensor;
    const void* data;
    bool requires_grad;
  };
  std::vector<Held> tensors;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes;
  optim::FusedOptimizer* optimizer;
  optim::FusedOptimizer::Snapshot optimizer_snapshot;

  Conditions(const Module& module, const OptimizerHandle& handle)
      : optimizer(dynamic_cast<optim::FusedOptimizer*>(&handle.optimizer())) {
    for (const auto& list : {module.parameters(), module.buffers()})
      for (const auto& tensor : list)
        if (tensor.defined()) tensors.push_back({tensor, tensor.const_data_ptr(), tensor.requires_grad()});
    for (const auto& part : module.modules()) modes.emplace_back(part, part->is_training());
    optimizer_snapshot = optimizer->snapshot();
  }

  /// What has changed since; nullptr when nothing has.
  const char* changed() const {
    const auto is_same = [](const Held& held) {
      return held.tensor.const_data_ptr() == held.data && held.tensor.requires_grad() == held.requires_grad;
    };
    if (!std::all_of(tensors.begin(), tensors.end(), is_same)) return "parameters or buffers";
    if (!std::all_of(modes.begin(), modes.end(),
                     [](const auto& mode) { return mode.first->is_training() == mode.second; }))
      return "the training mode of a part";
    if (!optimizer->is_unchanged(optimizer_snapshot)) return "the optimizer's parameters, state or options";
    return nullptr;
  }
};

RecordedStep::RecordedStep(const ResolvedOptions& options, const TrainerState& state, LoggerConnector& logger,
                           OptimizerConnector& optimizers, std::unique_ptr<GraphRecorder> recorder, Parts parts)
    : state_(state),
      strategy_(*options.strategy),
      precision_(*options.precision),
      metrics_(logger.train_metrics()),
      optimizer_(*optimizers.all().front()),
      recorder_(std::move(recorder)),
      parts_(std::move(parts)) {
  metrics_.make_recordable();
  dynamic_cast<optim::FusedOptimizer&>(optimizer_.optimizer()).make_recordable();
}

RecordedStep::~RecordedStep() = default;

std::unique_ptr<RecordedStep> RecordedStep::make(const ResolvedOptions& options, const TrainerState& state,
                                                 LoggerConnector& logger, OptimizerConnector& optimizers, Parts parts) {
  GraphSupport support;
  if (!state.module->automatic_optimization) {
    support.why_not = "the module optimizes manually";
  } else if (optimizers.all().empty()) {
    support.why_not = "there is no optimizer";
  } else if (!optim::capabilities_of(optimizers.all().front()->optimizer()).tensor_learning_rate) {
    support.why_not = "the optimizer does not take its learning rate from a tensor; hint: levin::optim's do";
  } else if (!optimizers.accumulation().is_off()) {
    support.why_not = "gradients are accumulated over several batches";
  } else if (options.given.detect_anomaly) {
    support.why_not = "detect_anomaly looks at each gradient";
  } else {
    support = options.strategy->graph_support();
  }
  if (support.recorder != nullptr)
    return std::unique_ptr<RecordedStep>(
        new RecordedStep(options, state, logger, optimizers, std::move(support.recorder), std::move(parts)));
  log::rank_zero_warning(fmt::format("[cuda_graph] steps are not recorded: {}", support.why_not));
  return nullptr;
}

bool RecordedStep::begin(const Batch& batch) {
  if (gave_up_) return false;
  if (graphs_ != nullptr) {
    if (!fits(batch)) {
      log::rank_zero_info_once("[cuda_graph] batches of other shapes than the recorded one take ordinary steps");
      return false;
    }
    if (const char* changed = conditions_->changed()) {
      log::rank_zero_info(fmt::format("[cuda_graph] {} changed: the step is recorded anew", changed));
      last_change_ = changed;
      graphs_.reset();
      output_ = StepOutput();
      ordinary_steps_ = 0;
    }
  }
  if (graphs_ == nullptr) {
    if (!fits(batch)) ordinary_steps_ = 0;
    inputs_ = batch;
    if (ordinary_steps_++ < kOrdinarySteps) return false;
    record(batch);
    if (graphs_ == nullptr) return false;
  }
  const at::NoGradGuard no_grad;
  const c10::InferenceMode ordinary(false);
  for (size_t i = 0; i < batch.items().size(); ++i)
    inputs_.items()[i].second.copy_(batch.items()[i].second, /*non_blocking=*/true);
  return true;
}

bool RecordedStep::fits(const Batch& batch) const {
  return std::equal(batch.items().begin(), batch.items().end(), inputs_.items().begin(), inputs_.items().end(),
                    [](const auto& a, const auto& b) { return a.first == b.first && same_layout(a.second, b.second); });
}

void RecordedStep::record(const Batch& batch) {
  if (++recordings_ > kMostRecordings) return give_up(last_change_ + " changed too often");
  for (const auto& [name, tensor] : batch.items()) {
    if (!tensor.defined()) return give_up(fmt::format("'{}' of the batch is undefined", name));
    if (tensor.device() != strategy_.root_device())
      return give_up(fmt::format("'{}' of the batch is on the device {}, the module on {}", name, tensor.device().str(),
                                 strategy_.root_device().str()));
  }
  inputs_ = Batch();
  for (const auto& [name, tensor] : batch.items()) {
    const c10::InferenceMode ordinary(false);
    inputs_.set(name, at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()));
    inputs_[name].copy_(tensor);
  }
  metrics_.start_recording();
  try {
    record_parts();
    logs_ = metrics_.stop_recording();
  } catch (const std::exception&) {
    const std::string message = error_message(std::current_exception());
    graphs_.reset();
    output_ = StepOutput();
    scaling_ = StepScaling();
    precision_.abandon_window();
    try {
      metrics_.stop_recording();
    } catch (const Error&) {
      // It was the first of the two.
    }
    return give_up(
        fmt::format("{}; hint: code that is recorded may not wait for the device (item(), printing a value, "
                    "shapes that depend on data)",
                    message));
  }
  gradients_.clear();
  for (const auto& parameter : state_.module->parameters())
    if (parameter.grad().defined()) gradients_.emplace_back(parameter, parameter.grad());
  conditions_ = std::make_unique<Conditions>(*state_.module, optimizer_);
  log::rank_zero_info(fmt::format("[cuda_graph] recorded the step of batch {}: from here on it is replayed",
                                  state_.progress.total_batches));
}

void RecordedStep::record_parts() {
  const RecordingScope recording;
  const bool scales = precision_.scales_loss();
  auto graphs = std::make_unique<Graphs>();
  graphs->forward = recorder_->record([&] { output_ = parts_.forward(inputs_); });
  if (!output_.has_loss()) throw Error("cuda_graph", "training_step gave no loss");
  state_.module->optimizer_zero_grad(optimizer_);
  for (const auto& parameter : optimizer_.parameters())
    if (parameter.grad().defined())
      throw Error("cuda_graph", "optimizer_zero_grad keeps the gradients, which a recorded backward cannot add to");
  graphs->backward = recorder_->record([&] { parts_.backward(output_); });
  scaling_ = StepScaling();
  if (scales) graphs->unscale = recorder_->record([&] { scaling_ = precision_.unscale(optimizer_.optimizer()); });
  graphs->update = recorder_->record([&] { parts_.update(scaling_); });
  if (scales) graphs->end_window = recorder_->record([&] { precision_.end_window(); });
  graphs_ = std::move(graphs);
}

void RecordedStep::give_up(const std::string& reason) {
  gave_up_ = true;
  inputs_ = Batch();
  log::rank_zero_warning(fmt::format("[cuda_graph] steps are not recorded: {}", reason));
}

const StepOutput& RecordedStep::forward() {
  graphs_->forward->replay();
  metrics_.log_again(logs_);
  return output_;
}

void RecordedStep::backward() {
  // An ordinary step, or a hook, may have put others in their place.
  for (auto& [parameter, gradient] : gradients_)
    if (!parameter.grad().is_same(gradient)) parameter.mutable_grad() = gradient;
  graphs_->backward->replay();
}

StepScaling RecordedStep::unscale() {
  if (graphs_->unscale != nullptr) graphs_->unscale->replay();
  return scaling_;
}

void RecordedStep::update() {
  conditions_->optimizer->write_learning_rates();
  graphs_->update->replay();
}

void RecordedStep::end_window() {
  if (graphs_->end_window != nullptr) graphs_->end_window->replay();
}

}  // namespace levin
