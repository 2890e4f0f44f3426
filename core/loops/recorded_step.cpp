#include <levin/core/loops/recorded_step.h>

#include <levin/core/base/log.h>
#include <levin/core/connectors/error_context.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/loops/step_conditions.h>
#include <levin/core/loops/step_recording.h>
#include <levin/core/optim/fused_optimizer.h>
#include <levin/core/optim/optimizer_capabilities.h>
#include <levin/core/precision/precision.h>

#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

namespace levin {
namespace {

/// As many as LibTorch's kernels and allocator may need to settle.
constexpr int64_t kOrdinarySteps = 3;
/// What changes oftener than this changes all the time.
constexpr int64_t kMostRecordings = 20;
/// Shapes of batches that have recordings of their own, where these do not share memory in the order of recording.
constexpr size_t kMostShapes = 4;
/// Steps that are compared with ordinary ones after a recording, and how many follow each other without.
constexpr int64_t kFirstChecks = 3;
constexpr int64_t kStepsBetweenChecks = 2000;

using Level = GraphMode::Level;

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

/// A batch without its memory.
Batch layout_of(const Batch& batch) {
  Batch layout;
  for (const auto& [name, tensor] : batch.items())
    layout.set(name, tensor.defined() ? at::empty_strided(tensor.sizes(), tensor.strides(),
                                                          tensor.options().device(at::kMeta))
                                      : tensor);
  return layout;
}

}  // namespace

struct RecordedStep::Shape {
  std::vector<at::Device> devices;
  Batch layout;
  int64_t seen = 0;
  std::unique_ptr<StepRecording> recording;
};

RecordedStep::RecordedStep(const ResolvedOptions& options, const TrainerState& state, LoggerConnector& logger,
                           OptimizerConnector& optimizers, std::unique_ptr<GraphRecorder> recorder, Parts parts)
    : options_(options),
      state_(state),
      strategy_(*options.strategy),
      precision_(*options.precision),
      metrics_(logger.train_metrics()),
      optimizer_(*optimizers.all().front()),
      first_recorder_(std::move(recorder)),
      parts_(std::move(parts)) {
  if (dynamic_cast<ComparableRecorder*>(first_recorder_.get()) != nullptr)
    most_shapes_ = kMostShapes;
  else
    metrics_.make_recordable();
  dynamic_cast<optim::FusedOptimizer&>(optimizer_.optimizer()).make_recordable();
  if (options.given.graph.level() == Level::kAuto) timer_ = std::make_unique<StepTimer>();
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
  if (options.given.graph.level() == Level::kRequired)
    throw Error("graph", fmt::format("steps cannot be recorded: {}; hint: graph: true takes ordinary steps instead",
                                     support.why_not));
  log::rank_zero_warning(fmt::format("[graph] steps are not recorded: {}", support.why_not));
  return nullptr;
}

bool RecordedStep::begin(const Batch& batch) {
  current_ = nullptr;
  times_ = timer_ != nullptr;
  if (gave_up_) return false;
  if (timer_ != nullptr) timer_->begin();
  if (conditions_ != nullptr) {
    if (const char* changed = conditions_->changed()) {
      log::rank_zero_info(fmt::format("[graph] {} changed: the step is recorded anew", changed));
      last_change_ = changed;
      forget();
    }
  }
  Shape* const shape = shape_of(batch);
  times_ = times_ && shape != nullptr && shape == shapes_.front().get();
  if (shape == nullptr) {
    log::rank_zero_info_once("[graph] batches of other shapes than the recorded ones take ordinary steps");
    return false;
  }
  if (shape->recording == nullptr) {
    if (shape->seen++ < kOrdinarySteps) return false;
    if (timer_ != nullptr && !timer_->has_enough(StepTimer::Kind::kOrdinary)) return false;
    times_ = false;
    record(*shape, batch);
    if (gave_up_) return false;
  }
  shape->recording->read(batch);
  if (!check(*shape)) return false;
  current_ = shape->recording.get();
  return true;
}

RecordedStep::Shape* RecordedStep::shape_of(const Batch& batch) {
  const auto fits = [&](const std::unique_ptr<Shape>& shape) {
    size_t next = 0;
    return std::equal(batch.items().begin(), batch.items().end(), shape->layout.items().begin(),
                      shape->layout.items().end(), [&](const auto& a, const auto& b) {
                        return a.first == b.first && a.second.defined() == b.second.defined() &&
                               (!a.second.defined() || (a.second.device() == shape->devices[next++] &&
                                                        same_layout(a.second, b.second)));
                      });
  };
  const auto found = std::find_if(shapes_.begin(), shapes_.end(), fits);
  if (found != shapes_.end()) return found->get();
  const auto unrecorded = std::find_if(shapes_.begin(), shapes_.end(), [](const auto& shape) {
    return shape->recording == nullptr;
  });
  if (shapes_.size() == most_shapes_ && unrecorded == shapes_.end()) return nullptr;
  if (shapes_.size() == most_shapes_) shapes_.erase(unrecorded);
  auto shape = std::make_unique<Shape>();
  shape->layout = layout_of(batch);
  for (const auto& [name, tensor] : batch.items())
    if (tensor.defined()) shape->devices.push_back(tensor.device());
  shapes_.push_back(std::move(shape));
  return shapes_.back().get();
}

void RecordedStep::forget() {
  conditions_.reset();
  shapes_.clear();
}

void RecordedStep::record(Shape& shape, const Batch& batch) {
  if (++recordings_ > kMostRecordings) return give_up(last_change_ + " changed too often");
  for (const auto& [name, tensor] : batch.items()) {
    if (!tensor.defined()) return give_up(fmt::format("'{}' of the batch is undefined", name));
    if (tensor.device() != strategy_.root_device())
      return give_up(fmt::format("'{}' of the batch is on the device {}, the module on {}", name, tensor.device().str(),
                                 strategy_.root_device().str()));
  }
  const auto began = std::chrono::steady_clock::now();
  auto recorder = first_recorder_ != nullptr ? std::move(first_recorder_) : strategy_.graph_support().recorder;
  try {
    shape.recording = std::make_unique<StepRecording>(
        StepRecording::Context{.module = *state_.module,
                               .precision = precision_,
                               .metrics = metrics_,
                               .optimizer = optimizer_,
                               .parts = parts_},
        std::move(recorder), batch);
  } catch (const std::exception&) {
    const std::string message = error_message(std::current_exception());
    const char* const hint =
        "; hint: code that is recorded may not look at values (item(), printing one, shapes that depend on data)";
    return give_up(message + (message.find("hint:") == std::string::npos ? hint : ""));
  }
  if (conditions_ == nullptr) conditions_ = std::make_unique<StepConditions>(*state_.module, optimizer_);
  log::rank_zero_info(fmt::format("[graph] recorded the step of batch {} in {:.3g} ms: from here on it is replayed",
                                  state_.progress.total_batches,
                                  std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began)
                                      .count()));
}

bool RecordedStep::check(Shape& shape) {
  StepRecording& recording = *shape.recording;
  if (!recording.is_comparable()) return true;
  const bool due = recording.checks < kFirstChecks || recording.replays_since >= kStepsBetweenChecks ||
                   recording.checked_epoch != state_.progress.epoch;
  ++recording.replays_since;
  if (!due) return true;
  times_ = false;
  ++recording.checks;
  recording.replays_since = 0;
  recording.checked_epoch = state_.progress.epoch;
  std::string difference;
  try {
    difference = recording.difference();
  } catch (const std::exception&) {
    difference = error_message(std::current_exception());
  }
  if (difference.empty()) return true;
  give_up(fmt::format("{}; hint: what training_step does may not depend on anything but the batch and tensors that are "
                      "changed in place",
                      difference));
  return false;
}

void RecordedStep::give_up(const std::string& reason) {
  gave_up_ = true;
  timer_.reset();
  forget();
  if (options_.given.graph.level() == Level::kRequired)
    throw Error("graph",
                fmt::format("steps cannot be recorded: {}; hint: graph: true takes ordinary steps instead", reason));
  log::rank_zero_warning(fmt::format("[graph] steps are not recorded: {}", reason));
}

StepOutput RecordedStep::forward() { return current_->forward(); }

void RecordedStep::zero_grad() {
  for (const auto& parameter : optimizer_.parameters()) parameter.mutable_grad().reset();
}

void RecordedStep::backward() { current_->backward(); }
StepScaling RecordedStep::unscale() { return current_->unscale(); }
void RecordedStep::update() { current_->update(); }
void RecordedStep::end_window() { current_->end_window(); }

void RecordedStep::end() {
  if (current_ != nullptr) current_->release_batch();
  if (timer_ == nullptr) return;
  using Kind = StepTimer::Kind;
  timer_->end(current_ != nullptr ? Kind::kReplayed : Kind::kOrdinary, times_);
  if (!timer_->has_enough(Kind::kReplayed)) return;
  const auto said = [&](Kind kind) { return fmt::format("{:.4g} ms", 1e3 * timer_->shortest(kind)); };
  const bool faster = timer_->replaying_is_faster();
  log::rank_zero_info(fmt::format("[graph] auto: a replayed step takes {}, an ordinary one {}: steps are {}",
                                  said(Kind::kReplayed), said(Kind::kOrdinary), faster ? "replayed" : "not recorded"));
  timer_.reset();
  if (faster) return;
  gave_up_ = true;
  forget();
}

}  // namespace levin
