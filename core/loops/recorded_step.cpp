#include <levin/core/loops/recorded_step.h>

#include <levin/core/base/log.h>
#include <levin/core/base/recording.h>
#include <levin/core/connectors/error_context.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/loops/manual_recording.h>
#include <levin/core/loops/step_conditions.h>
#include <levin/core/loops/step_recording.h>
#include <levin/core/optim/fused_optimizer.h>
#include <levin/core/optim/optimizer_capabilities.h>
#include <levin/core/precision/precision.h>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
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
/// Places in an accumulation window.
constexpr size_t kPlaces = 3;
/// Steps in a row of which somebody keeps a result.
constexpr int64_t kMostHeldResults = 3;
/// Steps in a row in which hooks take gradients away.
constexpr int64_t kMostPassedOver = 10;
/// Ordinary steps that are compared with replays after a recording. Then the number of replays up to the next
/// comparison doubles, at most to this.
constexpr int64_t kFirstComparisons = 3;
constexpr int64_t kMostStepsBetweenComparisons = 2000;

int64_t next_interval(int64_t interval) { return std::clamp<int64_t>(2 * interval, 1, kMostStepsBetweenComparisons); }

using Level = GraphMode::Level;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

/// Whether the memory of two tensors overlaps, each taken from its first element to its last.
bool overlap(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  const auto begin = [](const at::Tensor& tensor) { return static_cast<const char*>(tensor.const_data_ptr()); };
  const auto end = [&](const at::Tensor& tensor) {
    return begin(tensor) + at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
  };
  return begin(a) < end(b) && begin(b) < end(a);
}

/// Returns why steps with this batch are not recorded: a recording has nothing but the memory of its tensors.
std::string why_not(const Batch& batch, const at::Device& root) {
  for (size_t i = 0; i < batch.items().size(); ++i) {
    const auto& [name, tensor] = batch.items()[i];
    if (!tensor.defined()) return fmt::format("'{}' of the batch is undefined", name);
    if (tensor.device() != root)
      return fmt::format("'{}' of the batch is on the device {}, the module on {}", name, tensor.device().str(),
                         root.str());
    if (tensor.requires_grad()) return fmt::format("'{}' of the batch requires a gradient", name);
    if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_conj() || tensor.is_neg())
      return fmt::format("'{}' of the batch is sparse, quantised, or a view that is conjugated or negated", name);
    for (size_t before = 0; before < i; ++before)
      if (const auto& [other, its] = batch.items()[before]; overlap(its, tensor))
        return fmt::format("'{}' and '{}' of the batch share memory; hint: clone one of them", other, name);
  }
  return "";
}

/// A batch without its memory.
Batch layout_of(const Batch& batch) {
  Batch layout;
  for (const auto& [name, tensor] : batch.items())
    layout.set(name, tensor.defined()
                         ? at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta))
                         : tensor);
  return layout;
}

}  // namespace

struct RecordedStep::Shape {
  std::vector<at::Device> devices;
  Batch layout;
  WindowPlace place;
  int64_t seen = 0;
  std::unique_ptr<StepRecording> recording;
};

RecordedStep::RecordedStep(const ResolvedOptions& options, const TrainerState& state, LoggerConnector& logger,
                           OptimizerConnector& optimizers, std::unique_ptr<GraphRecorder> recorder,
                           RecordedBodies bodies, RecordingRefusal& refusal)
    : options_(options),
      state_(state),
      strategy_(*options.strategy),
      precision_(*options.precision),
      metrics_(logger.train_metrics()),
      optimizers_(optimizers.all()),
      is_manual_(!state.module->automatic_optimization),
      first_recorder_(std::move(recorder)),
      bodies_(std::move(bodies)),
      refusal_(refusal),
      most_recordings_(kMostRecordings) {
  if (dynamic_cast<ComparableRecorder*>(first_recorder_.get()) != nullptr)
    most_shapes_ = kMostShapes;
  else
    metrics_.make_recordable();
  for (OptimizerHandle* optimizer : optimizers_)
    dynamic_cast<optim::FusedOptimizer&>(optimizer->optimizer()).make_recordable();
  if (!optimizers.accumulation().is_off()) {
    most_shapes_ *= kPlaces;
    most_recordings_ *= kPlaces;
  }
  if (options.given.graph.level() == Level::kAuto) timer_ = std::make_unique<StepTimer>();
}

RecordedStep::~RecordedStep() { set_step_is_recorded(false); }

std::unique_ptr<RecordedStep> RecordedStep::make(const ResolvedOptions& options, const TrainerState& state,
                                                 LoggerConnector& logger, OptimizerConnector& optimizers,
                                                 RecordedBodies bodies, RecordingRefusal& refusal) {
  GraphSupport support;
  const bool is_manual = !state.module->automatic_optimization;
  const auto takes_tensor = [](const OptimizerHandle* optimizer) {
    return optim::capabilities_of(optimizer->optimizer()).tensor_learning_rate;
  };
  if (optimizers.all().empty()) {
    support.why_not = "there is no optimizer";
  } else if (!std::all_of(optimizers.all().begin(), optimizers.all().end(), takes_tensor)) {
    support.why_not =
        "the optimizer does not take its learning rate from a tensor; hint: those of sgd, adam, "
        "adamw and adagrad do";
  } else if (is_manual && !std::has_single_bit(static_cast<uint64_t>(options.strategy->world_size()))) {
    // Where gradients are added to, c10d's Reducer divides by it, and multiplies by its inverse elsewhere.
    support.why_not = "the module optimizes manually on a number of ranks that is no power of two";
  } else if (options.given.detect_anomaly) {
    support.why_not = "detect_anomaly looks at each gradient";
  } else {
    support = options.strategy->graph_support();
    const bool compares = dynamic_cast<ComparableRecorder*>(support.recorder.get()) != nullptr;
    if (support.recorder != nullptr && !compares && !optimizers.accumulation().is_off())
      support = {.recorder = nullptr, .why_not = "gradients are accumulated over several batches"};
    else if (support.recorder != nullptr && !compares && is_manual)
      support = {.recorder = nullptr, .why_not = "the module optimizes manually, which is recorded on the CPU only"};
  }
  if (support.recorder != nullptr)
    return std::unique_ptr<RecordedStep>(
        new RecordedStep(options, state, logger, optimizers, std::move(support.recorder), std::move(bodies), refusal));
  if (options.given.graph.level() == Level::kRequired)
    throw Error("graph", fmt::format("steps cannot be recorded: {}; hint: graph: true takes ordinary steps instead",
                                     support.why_not));
  refusal.note(support.why_not);
  return nullptr;
}

StepRunner* RecordedStep::begin(const Batch& batch, const WindowPlace& place) {
  switch (decide(batch, place)) {
    case Kind::kWatched:
      return &watched_step_;
    case Kind::kReplayed:
      replayed_step_.begin(*current_, *conditions_);
      return &replayed_step_;
    case Kind::kOrdinary:
      break;
  }
  return nullptr;
}

RecordedStep::Kind RecordedStep::decide(const Batch& batch, const WindowPlace& place) {
  current_ = nullptr;
  kind_ = Kind::kOrdinary;
  times_ = timer_ != nullptr;
  if (gave_up_) return kind_;
  if (timer_ != nullptr) timer_->begin();
  if (conditions_ != nullptr) {
    const char* changed = conditions_->changed();
    if (changed == nullptr && has_lost_memory()) changed = "a tensor or generator that the step uses";
    if (changed != nullptr) {
      log::rank_zero_info(fmt::format("[graph] {} changed: the step is recorded anew", changed));
      last_change_ = changed;
      forget();
    } else if (conditions_->were_written()) {
      ++touches_;
    }
  }
  if (const std::string reason = why_not(batch, strategy_.root_device()); !reason.empty()) {
    give_up(reason);
    return kind_;
  }
  Shape* const shape = shape_of(batch, place);
  times_ = times_ && shape != nullptr && shape == shapes_.front().get();
  if (shape == nullptr) {
    log::rank_zero_info_once("[graph] batches of other shapes than the recorded ones take ordinary steps");
    return kind_;
  }
  if (shape->recording == nullptr) {
    if (shape->seen++ < kOrdinarySteps) return kind_;
    if (timer_ != nullptr && !timer_->has_enough(StepTimer::Kind::kOrdinary)) return kind_;
    times_ = false;
    record(*shape, batch);
    if (kind_ == Kind::kWatched || gave_up_) return kind_;
  } else if (!shape->recording->is_finished()) {
    times_ = false;
    if (!finish(*shape, batch)) return kind_;
  }
  StepRecording& recording = *shape->recording;
  if (!recording.can_add()) return kind_;
  if (is_due(recording)) return watch(recording, batch);
  ++recording.replays_since;
  recording.read(batch);
  current_ = &recording;
  set_step_is_recorded(true);
  return kind_ = Kind::kReplayed;
}

bool RecordedStep::finish(Shape& shape, const Batch& batch) {
  const auto began = Clock::now();
  const std::string held = shape.recording->held_result();
  if (!held.empty()) {
    // A callback may keep something of one step; a module does so in each.
    if (++held_results_ < kMostHeldResults) {
      record(shape, batch);
      return false;
    }
    give_up(
        fmt::format("something keeps {} for after the step, where replays would not renew it; hint: "
                    "return it in the step's outputs, and keep it in on_train_batch_end",
                    held));
    return false;
  }
  const std::string why_not = shape.recording->finish();
  recording_seconds_ += seconds_since(began);
  if (!why_not.empty()) {
    give_up(why_not);
    return false;
  }
  held_results_ = 0;
  say_recorded();
  return true;
}

bool RecordedStep::is_due(const StepRecording& recording) const {
  if (!recording.watches()) return false;
  const bool is_touched = recording.touches_seen != touches_;
  return recording.watched <= kFirstComparisons || recording.replays_since >= recording.interval ||
         (is_touched && recording.replays_since >= recording.touched_interval) ||
         recording.watched_epoch != state_.progress.epoch;
}

bool RecordedStep::has_lost_memory() const {
  return std::any_of(shapes_.begin(), shapes_.end(), [](const std::unique_ptr<Shape>& shape) {
    return shape->recording != nullptr && shape->recording->is_finished() && shape->recording->has_lost_memory();
  });
}

RecordedStep::Kind RecordedStep::watch(StepRecording& recording, const Batch& batch) {
  times_ = false;
  ++recording.watched;
  if (recording.watched > kFirstComparisons) {
    if (recording.replays_since >= recording.interval)
      recording.interval = next_interval(recording.interval);
    else if (recording.touches_seen != touches_)
      recording.touched_interval = next_interval(recording.touched_interval);
  }
  recording.touches_seen = touches_;
  recording.replays_since = 0;
  recording.watched_epoch = state_.progress.epoch;
  watched_step_.begin(recording, recording.begin_watching(batch));
  current_ = &recording;
  set_step_is_recorded(true);
  return kind_ = Kind::kWatched;
}

RecordedStep::Shape* RecordedStep::shape_of(const Batch& batch, const WindowPlace& place) {
  const auto fits = [&](const std::unique_ptr<Shape>& shape) {
    size_t next = 0;
    return shape->place == place &&
           std::equal(batch.items().begin(), batch.items().end(), shape->layout.items().begin(),
                      shape->layout.items().end(), [&](const auto& a, const auto& b) {
                        return a.first == b.first && a.second.defined() == b.second.defined() &&
                               (!a.second.defined() ||
                                (a.second.device() == shape->devices[next++] && same_layout(a.second, b.second)));
                      });
  };
  const auto found = std::find_if(shapes_.begin(), shapes_.end(), fits);
  if (found != shapes_.end()) return found->get();
  const auto unrecorded =
      std::find_if(shapes_.begin(), shapes_.end(), [](const auto& shape) { return shape->recording == nullptr; });
  if (shapes_.size() == most_shapes_ && unrecorded == shapes_.end()) return nullptr;
  if (shapes_.size() == most_shapes_) shapes_.erase(unrecorded);
  auto shape = std::make_unique<Shape>();
  shape->layout = layout_of(batch);
  shape->place = place;
  for (const auto& [name, tensor] : batch.items())
    if (tensor.defined()) shape->devices.push_back(tensor.device());
  shapes_.push_back(std::move(shape));
  return shapes_.back().get();
}

void RecordedStep::forget() {
  current_ = nullptr;
  conditions_.reset();
  shapes_.clear();
}

void RecordedStep::record(Shape& shape, const Batch& batch) {
  if (++recordings_ > most_recordings_) return give_up(last_change_ + " changed too often");
  const auto began = Clock::now();
  recorded_batch_ = state_.progress.total_batches;
  auto recording = make_recording(shape.place);
  if (recording->watches()) {
    shape.recording = std::move(recording);
    watch(*shape.recording, batch);
    watch_began_ = began;
    return;
  }
  try {
    recording->record(batch);
  } catch (const std::exception&) {
    const std::string message = error_message(std::current_exception());
    const char* const hint =
        "; hint: code that is recorded may not wait for the device (item(), printing a value, shapes that depend on "
        "data)";
    return give_up(message + (message.find("hint:") == std::string::npos ? hint : ""));
  }
  shape.recording = std::move(recording);
  recording_seconds_ = seconds_since(began);
  if (conditions_ == nullptr) conditions_ = std::make_unique<StepConditions>(*state_.module, optimizers_);
  say_recorded();
}

std::unique_ptr<StepRecording> RecordedStep::make_recording(const WindowPlace& place) {
  auto recorder = first_recorder_ != nullptr ? std::move(first_recorder_) : strategy_.graph_support().recorder;
  const StepRecording::Context context{.module = *state_.module,
                                       .precision = precision_,
                                       .metrics = metrics_,
                                       .optimizers = optimizers_,
                                       .bodies = bodies_,
                                       .place = place};
  if (is_manual_) return std::make_unique<ManualRecording>(context, std::move(recorder));
  return std::make_unique<StepRecording>(context, std::move(recorder));
}

void RecordedStep::say_recorded() const {
  log::rank_zero_info(fmt::format("[graph] recorded the step of batch {} in {:.3g} ms: it is replayed from here on",
                                  recorded_batch_, 1e3 * recording_seconds_));
}

void RecordedStep::give_up(const std::string& reason) {
  if (std::exchange(gave_up_, true)) return;
  timer_.reset();
  forget();
  if (options_.given.graph.level() == Level::kRequired)
    throw Error("graph",
                fmt::format("steps cannot be recorded: {}; hint: graph: true takes ordinary steps instead", reason));
  refusal_.note(reason);
}

void RecordedStep::end(const StepOutput& output, const StepScaling& scaling) {
  set_step_is_recorded(false);
  if (kind_ == Kind::kReplayed) current_->release_batch();
  if (kind_ == Kind::kWatched) {
    const std::string what = current_->end_watching(output, scaling);
    // Where a hook inside of the step has changed something, the next one is recorded anew.
    if (!what.empty() && conditions_ != nullptr && conditions_->changed() != nullptr) return;
    if (!what.empty()) return current_->was_passed_over() ? pass_over(what) : give_up(what);
    passed_over_ = 0;
    if (!current_->is_finished()) recording_seconds_ = seconds_since(watch_began_);
    if (conditions_ == nullptr) conditions_ = std::make_unique<StepConditions>(*state_.module, optimizers_);
  }
  if (conditions_ != nullptr) conditions_->note_writes();
  if (timer_ == nullptr) return;
  timer_->end(kind_ == Kind::kReplayed ? StepTimer::Kind::kReplayed : StepTimer::Kind::kOrdinary, times_);
  if (timer_->has_enough(StepTimer::Kind::kReplayed)) choose();
}

void RecordedStep::end_hooks() {
  if (kind_ == Kind::kWatched && current_ != nullptr && !current_->is_finished()) current_->note_let_go();
}

void RecordedStep::pass_over(const std::string& why) {
  if (++passed_over_ >= kMostPassedOver) return give_up(why);
  --current_->watched;
  if (current_->is_finished()) return;
  for (const auto& shape : shapes_)
    if (shape->recording.get() == current_) shape->recording.reset();
  current_ = nullptr;
}

void RecordedStep::choose() {
  const auto said = [&](StepTimer::Kind kind) { return fmt::format("{:.4g} ms", 1e3 * timer_->shortest(kind)); };
  const bool faster = timer_->replaying_is_faster();
  log::rank_zero_info(fmt::format("[graph] auto: a replayed step takes {}, an ordinary one {}: steps are {}",
                                  said(StepTimer::Kind::kReplayed), said(StepTimer::Kind::kOrdinary),
                                  faster ? "replayed" : "not recorded"));
  timer_.reset();
  if (faster) return;
  gave_up_ = true;
  forget();
}

}  // namespace levin
