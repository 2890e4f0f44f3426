#include <levin/core/loops/step_recording.h>

#include <levin/core/accelerators/operator_trace.h>
#include <levin/core/base/detached_alias.h>
#include <levin/core/base/error.h>
#include <levin/core/base/recording.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/loops/step_conditions.h>
#include <levin/core/optim/fused_optimizer.h>
#include <levin/core/precision/precision.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace levin {
namespace {

constexpr const char* kNumberAsWeight =
    "training_step gave the loss's weight as a number, which replays would not renew; hint: give it as a tensor";

constexpr const char* kSparseGradient =
    "the gradient of a parameter is sparse; hint: make the Embedding without `sparse`";

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
  for (const auto& parameter : module.named_parameters())
    if (gradient_hooks_of(parameter.value()) > 0) return parameter.key();
  return "";
}

bool same_logs(const metrics::Collector::Recording& a, const metrics::Collector::Recording& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& other) {
    return one.slot == other.slot && one.weight == other.weight && one.value.defined() == other.value.defined();
  });
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
    : context_(context),
      watcher_(dynamic_cast<ComparableRecorder*>(recorder.get())),
      parameters_(context.module.parameters()),
      recorder_(std::move(recorder)) {}

StepRecording::~StepRecording() = default;

// ---- Recording without taking the step.

void StepRecording::record(const Batch& batch) {
  const GradientScope gradients(context_.module);
  for (const auto& [name, tensor] : batch.items()) inputs_.set(name, make_input(tensor));
  inputs_.text_items() = batch.text_items();
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
    results_.logs = {context_.metrics.stop_recording()};
  } catch (...) {
    context_.precision.abandon_window();
    throw;
  }
  for (const auto& parameter : parameters_)
    if (parameter.grad().defined()) results_.gradients.push_back({.parameter = parameter, .tensor = parameter.grad()});
  finished_ = true;
}

void StepRecording::run_parts() {
  const RecordingScope recording;
  const bool scales = context_.precision.scales_loss();
  OptimizerHandle& optimizer = *context_.optimizers.front();
  auto graphs = std::make_unique<Graphs>();
  graphs->forward = recorder_->record([&] { output_ = context_.bodies.forward(inputs_); });
  if (!output_.has_loss()) throw Error("graph", "training_step gave no loss");
  if (output_.weight().defined() && !output_.weight().tensor().defined()) throw Error("graph", kNumberAsWeight);
  context_.module.optimizer_zero_grad(optimizer);
  for (const auto& parameter : optimizer.parameters())
    if (parameter.grad().defined())
      throw Error("graph", "optimizer_zero_grad keeps the gradients, which a recorded backward cannot add to");
  graphs->backward = recorder_->record([&] { context_.bodies.backward(output_); });
  if (has_sparse_gradient()) throw Error("graph", kSparseGradient);
  if (scales)
    graphs->unscale = recorder_->record([&] { results_.scaling = context_.precision.unscale(optimizer.optimizer()); });
  graphs->update = recorder_->record([&] { context_.bodies.update(results_.scaling); });
  if (scales) graphs->end_window = recorder_->record([&] { context_.precision.end_window(); });
  graphs_ = std::move(graphs);
}

// ---- Watching a step that is taken.

void StepRecording::find_gradients_added_to() {
  added_to_.clear();
  if (!context_.place.adds) return;
  for (const auto& parameter : parameters_)
    if (parameter.grad().defined()) added_to_.push_back({.parameter = parameter, .tensor = parameter.grad()});
}

bool StepRecording::can_add() {
  find_gradients_added_to();
  return std::equal(added_to_.begin(), added_to_.end(), layouts_.begin(), layouts_.end(),
                    [](const Gradient& gradient, const Gradient& recorded) {
                      const at::Tensor& layout = recorded.tensor;
                      return gradient.parameter.is_same(recorded.parameter) &&
                             gradient.tensor.layout() == at::kStrided && gradient.tensor.storage_offset() == 0 &&
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
  passed_over_ = false;
  gradients_differ_ = false;
  // The names stay where they are, for the messages.
  if (units_ == nullptr) units_ = std::make_unique<RecordedUnits>(context_.module);
  units_->attach();
  next_part_ = 0;
  begin_results();
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
    layouts_.push_back({.parameter = gradient.parameter,
                        .tensor = at::empty_strided(gradient.tensor.sizes(), gradient.tensor.strides(),
                                                    gradient.tensor.options().device(at::kMeta))});
  std::vector<at::Tensor> state = parameters_;
  for (const at::Tensor& buffer : context_.module.buffers()) state.push_back(buffer);
  batch_ = batch;
  const auto inputs = watcher_->begin_step(tensors_of(batch), gradients_added_to(), state);
  inputs_ = Batch();
  for (size_t i = 0; i < inputs.size(); ++i) inputs_.set(batch.items()[i].first, inputs[i]);
  inputs_.text_items() = batch.text_items();
  const std::string hooked = hook_of_a_parameter(context_.module);
  if (!hooked.empty()) failure_ = fmt::format("the parameter '{}' has a hook, which replays would leave out", hooked);
  return inputs_;
}

void StepRecording::watch(RecordedPart part, const std::function<void()>& body) {
  using Part = RecordedPart;
  if (failure_.empty() && static_cast<size_t>(part) != next_part_++)
    failure_ = "the step left a part out, or repeated it";
  if (!failure_.empty()) return body();
  if (part == Part::kBackward) {
    const auto& parameters = context_.optimizers.front()->parameters();
    if (!context_.place.adds &&
        std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& p) { return p.grad().defined(); }))
      failure_ = "optimizer_zero_grad keeps the gradients, which a recorded backward cannot add to";
  } else if (part > Part::kBackward) {
    take_gradients_of_hooks();
    if (!failure_.empty()) return body();
  }
  if (part == Part::kUpdate)
    dynamic_cast<optim::FusedOptimizer&>(context_.optimizers.front()->optimizer()).write_learning_rates();
  watch_part(body);
  if (part != Part::kBackward) return;
  release_graph_of_loss();
  watcher_->note_kept();
  note_gradients();
}

bool StepRecording::has_sparse_gradient() const {
  return std::any_of(parameters_.begin(), parameters_.end(), [](const at::Tensor& parameter) {
    return parameter.grad().defined() && parameter.grad().layout() != at::kStrided;
  });
}

bool StepRecording::refuses_sparse_gradients() {
  if (!has_sparse_gradient()) return false;
  if (failure_.empty()) failure_ = kSparseGradient;
  return true;
}

void StepRecording::note_gradients() {
  if (refuses_sparse_gradients()) return;
  after_backward_ = present_gradients();
  gradients_differ_ =
      finished_ && std::any_of(results_.gradients.begin(), results_.gradients.end(), [](const Gradient& gradient) {
        const at::Tensor& present = gradient.parameter.grad();
        return present.defined() && !same_values(present, gradient.tensor);
      });
}

void StepRecording::take_gradients_of_hooks() {
  if (present_gradients().size() != after_backward_.size() ||
      (finished_ && !(copy_gradients(results_.gradients) && copy_gradients(added_to_))))
    pass_over("hooks take gradients away in step after step, or give some to parameters that have none");
}

void StepRecording::pass_over(const std::string& why) {
  failure_ = why;
  passed_over_ = true;
}

std::vector<StepRecording::Gradient> StepRecording::present_gradients() const {
  std::vector<Gradient> present;
  for (const auto& parameter : parameters_)
    if (parameter.grad().defined()) present.push_back({.parameter = parameter, .tensor = parameter.grad()});
  return present;
}

void StepRecording::watch_part(const std::function<void()>& body) {
  watcher_->watch([&] {
    context_.metrics.start_recording();
    try {
      body();
    } catch (...) {
      context_.metrics.stop_observing();
      throw;
    }
    end_logs();
  });
}

void StepRecording::end_logs() {
  watched_results_.logs.push_back(context_.metrics.stop_observing());
  for (const auto& logged : watched_results_.logs.back()) watcher_->leave_out(logged.value);
}

void StepRecording::release_graph_of_loss() {
  if (!finished_ && loss_.defined() && loss_.grad_fn() != nullptr) {
    loss_.unsafeGetTensorImpl()->set_autograd_meta(nullptr);
    loss_.set_requires_grad(true);  // as that of a replay
  }
  loss_.reset();
}

at::Tensor StepRecording::own(const at::Tensor& tensor) {
  if (finished_ || !tensor.defined() || !tensor.has_storage()) return tensor;
  at::Tensor own = detached_alias(tensor);
  watcher_->leave_out(own);
  return own;
}

void StepRecording::take_over(StepOutput& output) {
  if (finished_) return;
  const at::Tensor loss = output.loss();
  loss_ = output.loss() = own(loss);
  if (loss.defined() && loss.grad_fn() != nullptr)
    torch::autograd::impl::set_gradient_edge(output.loss(), torch::autograd::impl::gradient_edge(loss));
  else if (loss.defined())
    output.loss().set_requires_grad(loss.requires_grad());
  if (output.weight().tensor().defined()) output.weight() = own(output.weight().tensor());
  for (auto& [name, tensor] : output.outputs().items()) tensor = own(tensor);
}

bool StepRecording::copy_gradients(const std::vector<Gradient>& gradients) {
  const auto is_missing = [](const Gradient& gradient) {
    const at::Tensor& present = gradient.parameter.grad();
    return !present.is_same(gradient.tensor) &&
           (!present.defined() || present.sizes() != gradient.tensor.sizes() ||
            present.scalar_type() != gradient.tensor.scalar_type() || present.layout() != at::kStrided);
  };
  if (std::any_of(gradients.begin(), gradients.end(), is_missing)) return false;
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  for (const Gradient& gradient : gradients)
    if (!gradient.parameter.grad().is_same(gradient.tensor)) gradient.tensor.copy_(gradient.parameter.grad());
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
  add(output.weight().tensor());
  for (const auto& [name, tensor] : output.outputs().items()) {
    results.outputs.set(name, {});
    add(tensor);
  }
  for (Output& loss : results.losses) {
    loss.result = all.size();
    all.push_back(loss.tensor);
  }
  for (const auto& parameter : parameters_) {
    const bool was_there = std::any_of(added_to_.begin(), added_to_.end(),
                                       [&](const Gradient& gradient) { return gradient.parameter.is_same(parameter); });
    if (parameter.grad().defined() && !was_there) note_gradient(results, parameter);
  }
  for (Gradient& gradient : results.gradients) {
    gradient.result = all.size();
    all.push_back(gradient.tensor);
  }
  for (const auto& logs : results.logs)
    for (const auto& logged : logs)
      if (logged.value.defined()) all.push_back(logged.value);
  for (const at::Tensor& tensor : {scaling.grad_scale, scaling.found_inf})
    if (tensor.defined()) all.push_back(tensor);
  return all;
}

size_t StepRecording::note_gradient(Results& results, const at::Tensor& parameter) const {
  const at::Tensor& gradient = parameter.grad();
  // Its memory is held here, so that no other gradient can have come by it.
  const auto known = std::find_if(results.gradients.begin(), results.gradients.end(), [&](const Gradient& one) {
    return one.parameter.is_same(parameter) && one.tensor.is_alias_of(gradient) &&
           one.tensor.sizes() == gradient.sizes() && one.tensor.strides() == gradient.strides() &&
           one.tensor.storage_offset() == gradient.storage_offset();
  });
  const auto number = static_cast<size_t>(known - results.gradients.begin());
  if (known == results.gradients.end()) {
    results.gradients.push_back({.parameter = parameter, .tensor = gradient.detach()});
    watcher_->leave_out(results.gradients.back().tensor);
  }
  return number;
}

std::string StepRecording::what_is_missing(const StepOutput& output) const {
  if (!output.has_loss()) return "training_step gave no loss";
  if (output.weight().defined() && !output.weight().tensor().defined()) return kNumberAsWeight;
  const size_t parts = context_.place.ends ? kRecordedParts : kRecordedPartsBeforeUpdate;
  return next_part_ == parts ? "" : "the step left a part out";
}

/// Gives the batch what the step has done to the tensors that stood for it, but for their values. Returns what that
/// was, which replays would leave out.
std::string StepRecording::give_back_inputs() {
  std::string what;
  for (size_t i = 0; i < inputs_.items().size(); ++i) {
    const auto& [name, input] = inputs_.items()[i];
    const at::Tensor& given = batch_.items()[i].second;
    if (given.sizes() != input.sizes() || given.strides() != input.strides()) {
      given.unsafeGetTensorImpl()->set_sizes_and_strides(input.sizes(), input.strides());
      what =
          fmt::format("training_step gives '{}' of the batch another shape; hint: make a tensor of that shape", name);
    }
    if (input.const_data_ptr() != given.const_data_ptr()) {
      given.unsafeGetTensorImpl()->set_storage_keep_dtype(input.storage());
      given.unsafeGetTensorImpl()->set_storage_offset(input.storage_offset());
      what = fmt::format("training_step gives '{}' of the batch other memory; hint: make another tensor", name);
    }
    if (!input.requires_grad() && !input.grad().defined()) continue;
    given.set_requires_grad(input.requires_grad());
    given.mutable_grad() = input.grad();
    what = input.requires_grad() ? fmt::format("training_step makes '{}' of the batch require a gradient", name)
                                 : fmt::format("training_step gives '{}' of the batch a gradient", name);
  }
  return what;
}

std::string StepRecording::end_watching(const StepOutput& output, const StepScaling& scaling) {
  units_->detach();
  // Those of a batch that does not end its window run after its last part.
  if (failure_.empty() && next_part_ == kRecordedPartsBeforeUpdate) {
    take_gradients_of_hooks();
    const bool are_its_own = std::all_of(after_backward_.begin(), after_backward_.end(), [](const Gradient& gradient) {
      return gradient.parameter.grad().is_same(gradient.tensor);
    });
    if (!are_its_own) pass_over("hooks put other gradients in the place of a step's in step after step");
  }
  after_backward_.clear();
  const std::string of_batch = give_back_inputs();
  if (failure_.empty()) failure_ = of_batch;
  if (failure_.empty()) failure_ = what_is_missing(output);
  batch_ = Batch();
  loss_.reset();
  for (const at::Tensor& tensor : {scaling.grad_scale, scaling.found_inf}) watcher_->leave_out(tensor);
  if (failure_.empty()) end_parts();
  if (!failure_.empty()) {
    watcher_->abandon_step();
    inputs_ = Batch();
    added_to_.clear();
    watched_results_ = Results();
    return failure_;
  }
  const std::vector<at::Tensor> results = collect(watched_results_, output, scaling);
  const bool is_viewed_otherwise =
      std::any_of(watched_results_.tensors.begin(), watched_results_.tensors.end(), [&](const Output& output) {
        return output.input && output.tensor.scalar_type() != inputs_.items()[*output.input].second.scalar_type();
      });
  inputs_ = Batch();
  std::string what = watcher_->end_step(results);
  if (is_viewed_otherwise) what = "an output shows a tensor of the batch as numbers of another type; hint: clone it";
  if (what.empty() && gradients_differ_) what = "the gradient of a parameter differs from an ordinary step";
  added_to_.clear();
  if (finished_) watcher_->read({});
  if (!finished_) {
    results_ = std::move(watched_results_);
  } else if (what.empty() && !std::equal(results_.logs.begin(), results_.logs.end(), watched_results_.logs.begin(),
                                         watched_results_.logs.end(), same_logs)) {
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
  for (const auto& logs : results_.logs)
    for (const auto& logged : logs)
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
  for (const at::Tensor& parameter : context_.optimizers.front()->parameters()) {
    const auto is_of_it = [&](const Gradient& gradient) { return gradient.parameter.is_same(parameter); };
    if (std::none_of(results_.gradients.begin(), results_.gradients.end(), is_of_it) &&
        std::none_of(layouts_.begin(), layouts_.end(), is_of_it))
      ungraded_.push_back(parameter);
  }
  return "";
}

/// Takes the recorder's tensors, which it may have renewed.
void StepRecording::take_results() {
  const auto& all = watcher_->results();
  size_t next = 0;
  for (auto* outputs : {&results_.tensors, &results_.losses})
    for (Output& output : *outputs)
      if (output.result) output.tensor = all[next++];
  for (Gradient& gradient : results_.gradients) gradient.tensor = all[next++];
  for (auto& logs : results_.logs)
    for (auto& logged : logs)
      if (logged.value.defined()) logged.value = all[next++];
  for (at::Tensor* tensor : {&results_.scaling.grad_scale, &results_.scaling.found_inf})
    if (tensor->defined()) *tensor = all[next++];
}

// ---- Replays.

void StepRecording::read(const Batch& batch) {
  if (watcher_ != nullptr) {
    batch_ = batch;
    return read_batch();
  }
  const at::NoGradGuard no_grad;
  const c10::InferenceMode ordinary(false);
  for (size_t i = 0; i < batch.items().size(); ++i)
    inputs_.items()[i].second.copy_(batch.items()[i].second, /*non_blocking=*/true);
}

void StepRecording::read_batch() {
  std::vector<at::Tensor> tensors = tensors_of(batch_);
  for (const at::Tensor& gradient : gradients_added_to()) tensors.push_back(gradient);
  watcher_->read(tensors);
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
    context_.metrics.log_again(results_.logs.front());
    return output_;
  }
  replay_part(static_cast<size_t>(RecordedPart::kStep));
  replay_part(static_cast<size_t>(RecordedPart::kStepEnd));
  return output();
}

void StepRecording::replay_part(size_t part) {
  watcher_->replay(part);
  context_.metrics.log_again(results_.logs[part]);
}

StepOutput StepRecording::output() const {
  StepOutput output;
  output.loss() = handed_out(results_.tensors.front());
  if (results_.loss_requires_grad) output.loss().set_requires_grad(true);
  if (results_.tensors[1].tensor.defined()) output.weight() = handed_out(results_.tensors[1]);
  for (size_t i = 2; i < results_.tensors.size(); ++i)
    output.outputs().set(results_.outputs.items()[i - 2].first, handed_out(results_.tensors[i]));
  return output;
}

void StepRecording::renew_gradients_held() {
  bool renewed = false;
  for (const Gradient& gradient : results_.gradients)
    renewed |= renew_if_held(gradient, gradient.parameter.grad().is_same(gradient.tensor) ? 1 : 0);
  if (renewed) take_results();
}

bool StepRecording::renew_if_held(const Gradient& gradient, size_t known) {
  if (gradient.tensor.use_count() <= 2 + known && gradient.tensor.storage().use_count() <= gradient.holders)
    return false;
  watcher_->renew(gradient.result);
  return true;
}

void StepRecording::backward() {
  if (watcher_ != nullptr) renew_gradients_held();
  if (!put_in_place(added_to_)) {
    // A hook took away what this step would add to: the sum begins anew.
    const c10::InferenceMode ordinary(false);
    for (Gradient& gradient : added_to_) {
      if (gradient.parameter.grad().defined()) continue;
      gradient.tensor = at::zeros_like(gradient.tensor);
      gradient.parameter.mutable_grad() = gradient.tensor;
    }
    read_batch();
    if (!put_in_place(added_to_)) throw Error("graph", "a hook put a gradient of another type or shape there");
  }
  // An ordinary step, or a hook, may have put others in their place.
  for (const Gradient& gradient : results_.gradients)
    if (!gradient.parameter.grad().is_same(gradient.tensor)) gradient.parameter.mutable_grad() = gradient.tensor;
  if (watcher_ != nullptr)
    replay_part(static_cast<size_t>(RecordedPart::kBackward));
  else
    graphs_->backward->replay();
}

bool StepRecording::put_in_place(const std::vector<Gradient>& gradients) {
  const bool in_place = std::all_of(gradients.begin(), gradients.end(), [](const Gradient& gradient) {
    return gradient.parameter.grad().is_same(gradient.tensor);
  });
  if (in_place) return true;
  if (!copy_gradients(gradients)) return false;
  for (const Gradient& gradient : gradients) gradient.parameter.mutable_grad() = gradient.tensor;
  return true;
}

bool StepRecording::has_gradients() {
  const auto has_one = [](const at::Tensor& parameter) { return parameter.grad().defined(); };
  return std::none_of(ungraded_.begin(), ungraded_.end(), has_one) && put_in_place(results_.gradients) &&
         put_in_place(added_to_);
}

std::optional<StepScaling> StepRecording::unscale() {
  if (watcher_ == nullptr) {
    if (graphs_->unscale != nullptr) graphs_->unscale->replay();
    return results_.scaling;
  }
  if (!has_gradients()) return std::nullopt;
  replay_part(static_cast<size_t>(RecordedPart::kUnscale));
  return results_.scaling;
}

bool StepRecording::update() {
  if (watcher_ != nullptr && !has_gradients()) return false;
  dynamic_cast<optim::FusedOptimizer&>(context_.optimizers.front()->optimizer()).write_learning_rates();
  if (watcher_ == nullptr) {
    graphs_->update->replay();
    return true;
  }
  replay_part(static_cast<size_t>(RecordedPart::kClip));
  replay_part(static_cast<size_t>(RecordedPart::kUpdate));
  return true;
}

void StepRecording::end_window() {
  if (watcher_ != nullptr)
    replay_part(results_.logs.size() - 1);
  else if (graphs_->end_window != nullptr)
    graphs_->end_window->replay();
}

}  // namespace levin
