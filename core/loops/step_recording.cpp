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

/// A tensor of the batch's layout, whose memory is set by ComparableRecorder::read_input_from.
at::Tensor make_input(const at::Tensor& like) {
  const c10::InferenceMode ordinary(false);
  return at::empty_strided(like.sizes(), like.strides(), like.options());
}

void require_no_hooks(const Module& module) {
  for (const auto& parameter : module.named_parameters()) {
    const auto* meta = torch::autograd::impl::get_autograd_meta(parameter.value());
    if (meta == nullptr) continue;
    if (!meta->hooks_.empty() || meta->post_acc_grad_hooks_ != nullptr)
      throw Error("graph", fmt::format("the parameter '{}' has a hook, which replays would leave out", parameter.key()));
  }
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

std::vector<at::Tensor> StepRecording::Results::tensors() const {
  std::vector<at::Tensor> all{output.loss()};
  for (const auto& [name, tensor] : output.outputs().items()) all.push_back(tensor);
  for (const Gradient& gradient : gradients) all.push_back(gradient.tensor);
  for (const auto* logs : {&forward_logs, &update_logs})
    for (const auto& logged : *logs) all.push_back(logged.value);
  all.push_back(scaling.grad_scale);
  all.push_back(scaling.found_inf);
  std::erase_if(all, [](const at::Tensor& tensor) { return !tensor.defined(); });
  return all;
}

StepRecording::StepRecording(const Context& context, std::unique_ptr<GraphRecorder> recorder, const Batch& batch)
    : context_(context),
      recorder_(std::move(recorder)),
      comparable_(dynamic_cast<ComparableRecorder*>(recorder_.get())),
      graphs_(std::make_unique<Graphs>()) {
  const GradientScope gradients(context_.module);
  for (const auto& [name, tensor] : batch.items()) inputs_.set(name, make_input(tensor));
  read(batch);
  if (comparable_ == nullptr) {
    results_ = run_parts(*graphs_);
    return;
  }
  require_no_hooks(context_.module);
  comparable_->record_step([this] {
    results_ = run_parts(*graphs_);
    return results_.tensors();
  });
  const std::string kept = comparable_->kept_result(results_.tensors());
  if (!kept.empty())
    throw Error("graph", fmt::format("something keeps what {} gave for after the step, where replays would change it; "
                                     "hint: keep it in on_train_batch_end, from the step's outputs",
                                     kept));
  for (Gradient& gradient : results_.gradients) gradient.holders = gradient.tensor.storage().use_count();
}

StepRecording::~StepRecording() = default;

StepRecording::Results StepRecording::run_parts(Graphs& graphs) {
  const RecordingScope recording;
  Results results;
  const auto logging = [&](const std::function<void()>& part) {
    context_.metrics.start_recording();
    try {
      part();
    } catch (...) {
      try {
        context_.metrics.stop_recording();
      } catch (const Error&) {
        // It was the first of the two.
      }
      throw;
    }
    return context_.metrics.stop_recording();
  };
  try {
    const bool scales = context_.precision.scales_loss();
    StepOutput output;
    results.forward_logs = logging([&] {
      graphs.forward = recorder_->record([&] { output = context_.parts.forward(inputs_); });
    });
    if (!output.has_loss()) throw Error("graph", "training_step gave no loss");
    context_.module.optimizer_zero_grad(context_.optimizer);
    for (const auto& parameter : context_.optimizer.parameters())
      if (parameter.grad().defined())
        throw Error("graph", "optimizer_zero_grad keeps the gradients, which a recorded backward cannot add to");
    graphs.backward = recorder_->record([&] { context_.parts.backward(output); });
    if (scales)
      graphs.unscale =
          recorder_->record([&] { results.scaling = context_.precision.unscale(context_.optimizer.optimizer()); });
    results.update_logs =
        logging([&] { graphs.update = recorder_->record([&] { context_.parts.update(results.scaling); }); });
    if (scales) graphs.end_window = recorder_->record([&] { context_.precision.end_window(); });
    results.loss_requires_grad = output.loss().requires_grad();
    if (comparable_ != nullptr) {
      // Without the graph of autograd, which would hold on to what forward made.
      output.loss() = output.loss().detach();
      for (auto& [name, tensor] : output.outputs().items())
        if (tensor.defined()) tensor = tensor.detach();
    }
    results.output = std::move(output);
  } catch (...) {
    context_.precision.abandon_window();
    throw;
  }
  for (const auto& parameter : context_.module.parameters())
    if (parameter.grad().defined()) results.gradients.push_back({.parameter = parameter, .tensor = parameter.grad()});
  return results;
}

std::string StepRecording::difference() {
  // Those of the last step, which hooks are still to see.
  for (Gradient& gradient : results_.gradients) gradient.tensor = comparable_->renew(gradient.tensor);
  const GradientScope gradients(context_.module);
  Graphs graphs;
  Results results;
  std::string what = comparable_->difference([&] {
    results = run_parts(graphs);
    return results.tensors();
  });
  if (what.empty() &&
      !(same_logs(results_.forward_logs, results.forward_logs) && same_logs(results_.update_logs, results.update_logs)))
    what = "an ordinary step logs other names or weights";
  return what;
}

void StepRecording::read(const Batch& batch) {
  if (comparable_ != nullptr) {
    for (size_t i = 0; i < batch.items().size(); ++i)
      comparable_->read_input_from(inputs_.items()[i].second, batch.items()[i].second);
    batch_ = batch;
    return;
  }
  const at::NoGradGuard no_grad;
  const c10::InferenceMode ordinary(false);
  for (size_t i = 0; i < batch.items().size(); ++i)
    inputs_.items()[i].second.copy_(batch.items()[i].second, /*non_blocking=*/true);
}

void StepRecording::release_batch() {
  if (comparable_ == nullptr) return;
  for (const auto& [name, input] : inputs_.items()) comparable_->read_input_from(input, {});
  batch_ = Batch();
}

at::Tensor StepRecording::handed_out(const at::Tensor& result) const {
  if (!result.defined()) return result;
  // A view of the batch is one of this step's batch, which others may hold on to.
  for (size_t i = 0; i < inputs_.items().size(); ++i) {
    if (!result.is_alias_of(inputs_.items()[i].second)) continue;
    const at::Tensor& given = batch_.items()[i].second;
    return given.as_strided(result.sizes(), result.strides(), given.storage_offset() + result.storage_offset());
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return result.clone();
}

StepOutput StepRecording::forward() {
  graphs_->forward->replay();
  context_.metrics.log_again(results_.forward_logs);
  if (comparable_ == nullptr) return results_.output;
  StepOutput output;
  output.loss() = handed_out(results_.output.loss());
  if (results_.loss_requires_grad) output.loss().set_requires_grad(true);
  for (const auto& [name, tensor] : results_.output.outputs().items()) output.outputs().set(name, handed_out(tensor));
  return output;
}

void StepRecording::backward() {
  for (auto& [parameter, gradient, holders] : results_.gradients) {
    if (comparable_ != nullptr) {
      // Held by this object and the recorder, unless somebody keeps the last step's.
      const size_t expected = 2 + (parameter.grad().is_same(gradient) ? 1 : 0);
      if (gradient.use_count() > expected || gradient.storage().use_count() > holders)
        gradient = comparable_->renew(gradient);
    }
    // An ordinary step, or a hook, may have put others in their place.
    if (!parameter.grad().is_same(gradient)) parameter.mutable_grad() = gradient;
  }
  graphs_->backward->replay();
}

StepScaling StepRecording::unscale() {
  if (graphs_->unscale != nullptr) graphs_->unscale->replay();
  return results_.scaling;
}

void StepRecording::update() {
  dynamic_cast<optim::FusedOptimizer&>(context_.optimizer.optimizer()).write_learning_rates();
  graphs_->update->replay();
  context_.metrics.log_again(results_.update_logs);
}

void StepRecording::end_window() {
  if (graphs_->end_window != nullptr) graphs_->end_window->replay();
}

}  // namespace levin
