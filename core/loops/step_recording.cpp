#include <levin/core/loops/step_recording.h>

#include <levin/core/base/error.h>
#include <levin/core/base/recording.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/optim/fused_optimizer.h>
#include <levin/core/precision/precision.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace levin {
namespace {

/// Keeps the gradients of parameters during its lifetime: hooks of the step to come see those of the last one.
class GradientScope {
 public:
  explicit GradientScope(const Module& module) {
    for (const auto& parameter : module.parameters()) gradients_.emplace_back(parameter, parameter.grad());
  }
  ~GradientScope() {
    for (auto& [parameter, gradient] : gradients_) parameter.mutable_grad() = gradient;
  }
  GradientScope(const GradientScope&) = delete;
  GradientScope& operator=(const GradientScope&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;
};

at::Tensor make_input(const at::Tensor& like) {
  const c10::InferenceMode ordinary(false);
  return at::empty_strided(like.sizes(), like.strides(), like.options());
}

std::vector<at::Tensor> tensors_of(const Batch& batch) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : batch.items()) tensors.push_back(tensor);
  return tensors;
}

std::string hook_of_a_parameter(const Module& module) {
  for (const auto& parameter : module.named_parameters()) {
    const auto* meta = torch::autograd::impl::get_autograd_meta(parameter.value());
    if (meta != nullptr && (!meta->hooks_.empty() || meta->post_acc_grad_hooks_ != nullptr)) return parameter.key();
  }
  return "";
}

bool same_logs(const metrics::Collector::Recording& a, const metrics::Collector::Recording& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& other) {
    return one.slot == other.slot && one.weight == other.weight && one.value.defined() == other.value.defined();
  });
}

void append(metrics::Collector::Recording& to, metrics::Collector::Recording logs) {
  for (auto& logged : logs) to.push_back(std::move(logged));
}

}  // namespace

struct StepRecording::Graphs {
  std::unique_ptr<RecordedGraph> forward;
  std::unique_ptr<RecordedGraph> backward;
  std::unique_ptr<RecordedGraph> unscale;  ///< nullptr without loss scaling
  std::unique_ptr<RecordedGraph> update;
  std::unique_ptr<RecordedGraph> end_window;  ///< nullptr without loss scaling
};

StepRecording::StepRecording(const Context& context, std::unique_ptr<GraphRecorder> recorder)
    : context_(context), recorder_(std::move(recorder)), watcher_(dynamic_cast<ComparableRecorder*>(recorder_.get())) {}

StepRecording::~StepRecording() = default;

// ---- Recording without taking the step.

void StepRecording::record(const Batch& batch) {
  const GradientScope gradients(context_.module);
  for (const auto& [name, tensor] : batch.items()) inputs_.set(name, make_input(tensor));
  read(batch);
  context_.metrics.start_recording();
  try {
    run_parts();
  } catch (...) {
    context_.precision.abandon_window();
    try {
      context_.metrics.stop_recording();
    } catch (const Error&) {
      // It was the first of the two.
    }
    throw;
  }
  try {
    results_.forward_logs = context_.metrics.stop_recording();
  } catch (...) {
    context_.precision.abandon_window();
    throw;
  }
  for (const auto& parameter : context_.module.parameters())
    if (parameter.grad().defined()) results_.gradients.push_back({.parameter = parameter, .tensor = parameter.grad()});
  finished_ = true;
}

void StepRecording::run_parts() {
  const RecordingScope recording;
  const bool scales = context_.precision.scales_loss();
  auto graphs = std::make_unique<Graphs>();
  graphs->forward = recorder_->record([&] { output_ = context_.parts.forward(inputs_); });
  if (!output_.has_loss()) throw Error("graph", "training_step gave no loss");
  context_.module.optimizer_zero_grad(context_.optimizer);
  for (const auto& parameter : context_.optimizer.parameters())
    if (parameter.grad().defined())
      throw Error("graph", "optimizer_zero_grad keeps the gradients, which a recorded backward cannot add to");
  graphs->backward = recorder_->record([&] { context_.parts.backward(output_); });
  if (scales)
    graphs->unscale =
        recorder_->record([&] { results_.scaling = context_.precision.unscale(context_.optimizer.optimizer()); });
  graphs->update = recorder_->record([&] { context_.parts.update(results_.scaling); });
  if (scales) graphs->end_window = recorder_->record([&] { context_.precision.end_window(); });
  graphs_ = std::move(graphs);
}

// ---- Watching a step that is taken.

void StepRecording::find_gradients_added_to() {
  added_to_.clear();
  if (!context_.place.adds) return;
  for (const auto& parameter : context_.module.parameters())
    if (parameter.grad().defined()) added_to_.push_back({.parameter = parameter, .tensor = parameter.grad()});
}

bool StepRecording::can_add() {
  find_gradients_added_to();
  return std::equal(added_to_.begin(), added_to_.end(), layouts_.begin(), layouts_.end(),
                    [](const Gradient& gradient, const at::Tensor& layout) {
                      return gradient.tensor.layout() == at::kStrided && gradient.tensor.storage_offset() == 0 &&
                             gradient.tensor.sizes() == layout.sizes() &&
                             gradient.tensor.strides() == layout.strides() &&
                             gradient.tensor.scalar_type() == layout.scalar_type();
                    });
}

std::vector<at::Tensor> StepRecording::gradients_added_to() const {
  std::vector<at::Tensor> tensors;
  for (const Gradient& gradient : added_to_) tensors.push_back(gradient.tensor);
  return tensors;
}

const Batch& StepRecording::begin_watching(const Batch& batch) {
  failure_.clear();
  // The names stay where they are, for the messages.
  if (units_ == nullptr) units_ = std::make_unique<RecordedUnits>(context_.module);
  units_->attach();
  next_part_ = 0;
  watched_results_ = Results();
  // A hook of this step is still to see the gradients of the last one.
  for (const Gradient& gradient : results_.gradients) watcher_->renew(gradient.result);
  if (finished_) take_results();
  if (!finished_) find_gradients_added_to();
  const bool can_be_read = std::all_of(added_to_.begin(), added_to_.end(), [](const Gradient& gradient) {
    return gradient.tensor.layout() == at::kStrided && gradient.tensor.storage_offset() == 0;
  });
  if (!can_be_read) {
    failure_ = "a gradient of the window is sparse, or a part of other memory";
    added_to_.clear();
  }
  layouts_.clear();
  for (const Gradient& gradient : added_to_)
    layouts_.push_back(at::empty_strided(gradient.tensor.sizes(), gradient.tensor.strides(),
                                         gradient.tensor.options().device(at::kMeta)));
  const auto inputs = watcher_->begin_step(tensors_of(batch), gradients_added_to());
  inputs_ = Batch();
  for (size_t i = 0; i < inputs.size(); ++i) inputs_.set(batch.items()[i].first, inputs[i]);
  const std::string hooked = hook_of_a_parameter(context_.module);
  if (!hooked.empty()) failure_ = fmt::format("the parameter '{}' has a hook, which replays would leave out", hooked);
  return inputs_;
}

void StepRecording::watch(RecordedStep::Part part, const std::function<void()>& body) {
  using Part = RecordedStep::Part;
  if (failure_.empty() && static_cast<size_t>(part) != next_part_++)
    failure_ = "the step left a part out, or repeated it";
  if (!failure_.empty()) return body();
  if (part == Part::kBackward) {
    const auto& parameters = context_.optimizer.parameters();
    if (!context_.place.adds &&
        std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& p) { return p.grad().defined(); }))
      failure_ = "optimizer_zero_grad keeps the gradients, which a recorded backward cannot add to";
  } else if (part > Part::kBackward && finished_ &&
             !(copy_gradients(results_.gradients) && copy_gradients(added_to_))) {
    failure_ = "a gradient is there now and then only";
  }
  if (part == Part::kUpdate)
    dynamic_cast<optim::FusedOptimizer&>(context_.optimizer.optimizer()).write_learning_rates();
  const bool logs = part == Part::kStep || part == Part::kStepEnd || part == Part::kClip || part == Part::kUpdate;
  auto& to = part <= Part::kStepEnd ? watched_results_.forward_logs : watched_results_.update_logs;
  watcher_->watch([&] {
    if (logs) context_.metrics.start_recording();
    try {
      body();
    } catch (...) {
      if (logs) context_.metrics.stop_observing();
      throw;
    }
    if (logs) append(to, context_.metrics.stop_observing());
  });
}

bool StepRecording::copy_gradients(const std::vector<Gradient>& gradients) {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  for (const Gradient& gradient : gradients) {
    const at::Tensor& present = gradient.parameter.grad();
    if (present.is_same(gradient.tensor)) continue;
    if (!present.defined() || present.sizes() != gradient.tensor.sizes() ||
        present.scalar_type() != gradient.tensor.scalar_type() || present.layout() != at::kStrided)
      return false;
    gradient.tensor.copy_(present);
  }
  return true;
}

std::vector<at::Tensor> StepRecording::collect(Results& results, const StepOutput& output,
                                               const StepScaling& scaling) const {
  std::vector<at::Tensor> all;
  results.scaling = scaling;
  results.loss_requires_grad = output.loss().requires_grad();
  const auto add = [&](const at::Tensor& tensor) {
    Output added{.tensor = tensor.defined() ? tensor.detach() : tensor};
    for (size_t i = 0; i < inputs_.items().size() && tensor.defined(); ++i)
      if (tensor.is_alias_of(inputs_.items()[i].second)) added.input = i;
    if (tensor.defined() && !added.input) {
      added.result = all.size();
      all.push_back(added.tensor);
    }
    results.tensors.push_back(std::move(added));
  };
  add(output.loss());
  for (const auto& [name, tensor] : output.outputs().items()) {
    results.outputs.set(name, {});
    add(tensor);
  }
  for (const auto& parameter : context_.module.parameters()) {
    const bool was_there = std::any_of(added_to_.begin(), added_to_.end(),
                                       [&](const Gradient& gradient) { return gradient.parameter.is_same(parameter); });
    if (!parameter.grad().defined() || was_there) continue;
    results.gradients.push_back({.parameter = parameter, .tensor = {}, .result = all.size()});
    all.push_back(parameter.grad().detach());
  }
  for (const auto* logs : {&results.forward_logs, &results.update_logs})
    for (const auto& logged : *logs)
      if (logged.value.defined()) all.push_back(logged.value);
  for (const at::Tensor& tensor : {scaling.grad_scale, scaling.found_inf})
    if (tensor.defined()) all.push_back(tensor);
  return all;
}

std::string StepRecording::end_watching(const StepOutput& output, const StepScaling& scaling) {
  units_->detach();
  const size_t parts = context_.place.ends ? RecordedStep::kParts : RecordedStep::kPartsBeforeUpdate;
  if (failure_.empty() && !output.has_loss()) failure_ = "training_step gave no loss";
  if (failure_.empty() && next_part_ != parts) failure_ = "the step left a part out";
  if (!failure_.empty()) return failure_;
  std::string what = watcher_->end_step(collect(watched_results_, output, scaling));
  inputs_ = Batch();
  added_to_.clear();
  if (finished_) watcher_->read({});
  if (!finished_) {
    results_ = std::move(watched_results_);
  } else if (what.empty() && !(same_logs(results_.forward_logs, watched_results_.forward_logs) &&
                               same_logs(results_.update_logs, watched_results_.update_logs))) {
    what = "an ordinary step logs other names or weights";
  }
  watched_results_ = Results();
  return what;
}

std::string StepRecording::held_result() const {
  std::vector<at::Tensor> known;
  for (const Gradient& gradient : results_.gradients)
    if (gradient.parameter.grad().defined()) known.push_back(gradient.parameter.grad());
  for (const Output& output : results_.tensors)
    if (output.tensor.defined()) known.push_back(output.tensor);
  for (const auto* logs : {&results_.forward_logs, &results_.update_logs})
    for (const auto& logged : *logs)
      if (logged.value.defined()) known.push_back(logged.value);
  for (const at::Tensor& tensor : {results_.scaling.grad_scale, results_.scaling.found_inf})
    if (tensor.defined()) known.push_back(tensor);
  return watcher_->held_result(known);
}

std::string StepRecording::finish() {
  std::string why_not = watcher_->finish();
  if (!why_not.empty()) return why_not;
  finished_ = true;
  take_results();
  for (Gradient& gradient : results_.gradients) gradient.holders = gradient.tensor.storage().use_count();
  return "";
}

/// Takes the recorder's tensors, which it may have renewed.
void StepRecording::take_results() {
  const auto& all = watcher_->results();
  size_t next = 0;
  for (Output& output : results_.tensors)
    if (output.result) output.tensor = all[*output.result], next = *output.result + 1;
  for (Gradient& gradient : results_.gradients) {
    gradient.tensor = all[gradient.result];
    next = gradient.result + 1;
  }
  for (auto* logs : {&results_.forward_logs, &results_.update_logs})
    for (auto& logged : *logs)
      if (logged.value.defined()) logged.value = all[next++];
  for (at::Tensor* tensor : {&results_.scaling.grad_scale, &results_.scaling.found_inf})
    if (tensor->defined()) *tensor = all[next++];
}

// ---- Replays.

void StepRecording::read(const Batch& batch) {
  if (watcher_ != nullptr) {
    std::vector<at::Tensor> tensors = tensors_of(batch);
    for (const at::Tensor& gradient : gradients_added_to()) tensors.push_back(gradient);
    watcher_->read(tensors);
    batch_ = batch;
    return;
  }
  const at::NoGradGuard no_grad;
  const c10::InferenceMode ordinary(false);
  for (size_t i = 0; i < batch.items().size(); ++i)
    inputs_.items()[i].second.copy_(batch.items()[i].second, /*non_blocking=*/true);
}

void StepRecording::release_batch() {
  if (watcher_ == nullptr) return;
  watcher_->read({});
  batch_ = Batch();
  added_to_.clear();
}

at::Tensor StepRecording::handed_out(const Output& output) const {
  if (output.input) {
    const at::Tensor& given = batch_.items()[*output.input].second;
    return given.as_strided(output.tensor.sizes(), output.tensor.strides(),
                            given.storage_offset() + output.tensor.storage_offset());
  }
  if (!output.tensor.defined() || !watcher_->is_made(output.tensor)) return output.tensor;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return output.tensor.clone();
}

StepOutput StepRecording::forward() {
  if (watcher_ == nullptr) {
    graphs_->forward->replay();
    context_.metrics.log_again(results_.forward_logs);
    return output_;
  }
  watcher_->replay(static_cast<size_t>(RecordedStep::Part::kStep));
  watcher_->replay(static_cast<size_t>(RecordedStep::Part::kStepEnd));
  context_.metrics.log_again(results_.forward_logs);
  StepOutput output;
  output.loss() = handed_out(results_.tensors.front());
  if (results_.loss_requires_grad) output.loss().set_requires_grad(true);
  for (size_t i = 1; i < results_.tensors.size(); ++i)
    output.outputs().set(results_.outputs.items()[i - 1].first, handed_out(results_.tensors[i]));
  return output;
}

void StepRecording::renew_gradients_held() {
  bool renewed = false;
  for (const Gradient& gradient : results_.gradients) {
    // Held by this object and the recorder, unless somebody keeps the last step's.
    const size_t expected = 2 + (gradient.parameter.grad().is_same(gradient.tensor) ? 1 : 0);
    if (gradient.tensor.use_count() <= expected && gradient.tensor.storage().use_count() <= gradient.holders) continue;
    watcher_->renew(gradient.result);
    renewed = true;
  }
  if (renewed) take_results();
}

void StepRecording::backward() {
  if (watcher_ != nullptr) renew_gradients_held();
  put_in_place(added_to_);
  // An ordinary step, or a hook, may have put others in their place.
  for (const Gradient& gradient : results_.gradients)
    if (!gradient.parameter.grad().is_same(gradient.tensor)) gradient.parameter.mutable_grad() = gradient.tensor;
  if (watcher_ != nullptr)
    watcher_->replay(static_cast<size_t>(RecordedStep::Part::kBackward));
  else
    graphs_->backward->replay();
}

void StepRecording::put_in_place(const std::vector<Gradient>& gradients) {
  const bool in_place = std::all_of(gradients.begin(), gradients.end(), [](const Gradient& gradient) {
    return gradient.parameter.grad().is_same(gradient.tensor);
  });
  if (in_place) return;
  if (!copy_gradients(gradients)) throw Error("graph", "a hook took a gradient away, which a replayed step needs");
  for (const Gradient& gradient : gradients) gradient.parameter.mutable_grad() = gradient.tensor;
}

StepScaling StepRecording::unscale() {
  if (watcher_ == nullptr) {
    if (graphs_->unscale != nullptr) graphs_->unscale->replay();
    return results_.scaling;
  }
  put_in_place(results_.gradients);
  put_in_place(added_to_);
  watcher_->replay(static_cast<size_t>(RecordedStep::Part::kUnscale));
  return results_.scaling;
}

void StepRecording::update() {
  dynamic_cast<optim::FusedOptimizer&>(context_.optimizer.optimizer()).write_learning_rates();
  if (watcher_ == nullptr) {
    graphs_->update->replay();
    return;
  }
  put_in_place(results_.gradients);
  put_in_place(added_to_);
  watcher_->replay(static_cast<size_t>(RecordedStep::Part::kClip));
  watcher_->replay(static_cast<size_t>(RecordedStep::Part::kUpdate));
  context_.metrics.log_again(results_.update_logs);
}

void StepRecording::end_window() {
  if (watcher_ != nullptr)
    watcher_->replay(static_cast<size_t>(RecordedStep::Part::kEndWindow));
  else if (graphs_->end_window != nullptr)
    graphs_->end_window->replay();
}

}  // namespace levin
