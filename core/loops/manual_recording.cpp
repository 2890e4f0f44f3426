#include <levin/core/loops/manual_recording.h>

#include <levin/core/base/detached_alias.h>
#include <levin/core/base/error.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/optim/fused_optimizer.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace levin {

// ---- Watching a step that is taken.

void ManualRecording::begin_results() {
  StepRecording::begin_results();
  watched_script_ = Script();
  shown_.clear();
}

void ManualRecording::watch(RecordedPart part, const std::function<void()>& body) {
  if (is_inside_ || in_hooks_ || !failure_.empty()) return body();
  if (part != RecordedPart::kStep) return watch_part(body);
  learning_rates_ = learning_rates();
  is_inside_ = true;
  try {
    watch_part(body);
  } catch (...) {
    is_inside_ = false;
    throw;
  }
  is_inside_ = false;
  check_learning_rates();
  watched_script_.end = view();
  if (finished_ && failure_.empty() && watched_script_.end != script_.end)
    failure_ = "a gradient, or whether one is required, is another than recorded after training_step";
}

void ManualRecording::interrupt(const ManualCut& cut, const at::Tensor& loss, const std::function<void()>& hooks) {
  if (!is_inside_ || in_hooks_) return hooks();
  end_logs();
  const size_t loss_number = watched_results_.losses.size();
  // Still in the part, since what is held from here on is a hook's. No operator, which would be recorded.
  if (loss.defined()) {
    watched_results_.losses.push_back({.tensor = detached_alias(loss)});
    watcher_->leave_out(watched_results_.losses.back().tensor);
    show(loss);
  }
  watcher_->interrupt([&] {
    check_learning_rates();
    Stop stop{.cut = cut, .view = view(), .loss = loss_number};
    const size_t number = watched_script_.stops.size();
    if (finished_ && (number >= script_.stops.size() || script_.stops[number].cut != cut))
      failure_ = "training_step runs backward or steps optimizers in another order than recorded";
    else if (finished_ && script_.stops[number].view != stop.view)
      failure_ = "a gradient, or whether one is required, is another than recorded";
    run_hooks(stop.view, hooks);
    if (cut.optimizer != nullptr)
      dynamic_cast<optim::FusedOptimizer&>(cut.optimizer->optimizer()).write_learning_rates();
    learning_rates_ = learning_rates();
    watched_script_.stops.push_back(std::move(stop));
  });
  context_.metrics.start_recording();
}

ManualRecording::View ManualRecording::view() {
  View view;
  if (refuses_sparse_gradients()) return view;
  for (const auto& parameter : parameters_) {
    Shown shown{.requires_grad = parameter.requires_grad()};
    const bool is_first = std::any_of(added_to_.begin(), added_to_.end(), [&](const Gradient& gradient) {
      return gradient.parameter.is_same(parameter) && gradient.tensor.is_same(parameter.grad());
    });
    if (is_first)
      shown.gradient = Shown::kFirstGradient;
    else if (parameter.grad().defined())
      shown.gradient = static_cast<std::ptrdiff_t>(note_gradient(watched_results_, parameter));
    view.parameters.push_back(shown);
  }
  for (const OptimizerHandle* optimizer : context_.optimizers) view.optimizers.push_back(optimizer->flags());
  return view;
}

void ManualRecording::run_hooks(const View& view, const std::function<void()>& hooks) {
  const std::vector<Gradient> present = present_gradients();
  for (const Gradient& gradient : present) show(gradient.tensor);
  for (ShownTensor& shown : shown_) shown.taken -= references_to(shown);
  in_hooks_ = true;
  hooks();
  in_hooks_ = false;
  for (ShownTensor& shown : shown_) shown.taken += references_to(shown);
  if (std::any_of(shown_.begin(), shown_.end(), [](const ShownTensor& shown) { return shown.taken < 0; }))
    return pass_over("hooks let go of a loss or gradient that training_step keeps, in step after step");
  if (refuses_sparse_gradients()) return;
  if (!copy_gradients(present)) return pass_over("a hook takes gradients away, or puts others of another shape there");
  for (const Gradient& gradient : present) gradient.parameter.mutable_grad() = gradient.tensor;
  if (!finished_ || !failure_.empty()) return;
  // A replay beside this step is to see what hooks made of the gradients.
  std::vector<Gradient> replayed;
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (view.parameters[i].gradient >= 0)
      replayed.push_back(results_.gradients[static_cast<size_t>(view.parameters[i].gradient)]);
  copy_gradients(replayed);
}

void ManualRecording::show(const at::Tensor& tensor) {
  const auto* const impl = tensor.unsafeGetTensorImpl();
  if (finished_ || std::any_of(shown_.begin(), shown_.end(),
                               [&](const ShownTensor& shown) { return shown.tensor._unsafe_get_target() == impl; }))
    return;
  shown_.push_back({.tensor = c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr())});
}

int64_t ManualRecording::references_to(const ShownTensor& shown) const {
  const auto count = static_cast<int64_t>(shown.tensor.use_count());
  const bool is_in_place = std::any_of(parameters_.begin(), parameters_.end(), [&](const at::Tensor& parameter) {
    return parameter.grad().defined() && parameter.grad().unsafeGetTensorImpl() == shown.tensor._unsafe_get_target();
  });
  return count - (count > 0 && is_in_place ? 1 : 0);
}

void ManualRecording::end_parts() { watcher_->note_kept(); }

std::vector<double> ManualRecording::learning_rates() const {
  std::vector<double> rates;
  for (const OptimizerHandle* optimizer : context_.optimizers)
    for (size_t group = 0; group < optimizer->optimizer().param_groups().size(); ++group)
      rates.push_back(optimizer->learning_rate(group));
  return rates;
}

void ManualRecording::check_learning_rates() {
  if (failure_.empty() && learning_rates_ != learning_rates())
    failure_ =
        "training_step changes a learning rate; hint: let schedulers step in on_train_batch_end or on_train_epoch_end";
}

std::string ManualRecording::what_is_missing(const StepOutput&) const {
  for (size_t i = 0; i < context_.optimizers.size(); ++i) {
    const ManualCut step{.kind = ManualCut::Kind::kBeforeStep, .optimizer = context_.optimizers[i]};
    if (std::none_of(watched_script_.stops.begin(), watched_script_.stops.end(),
                     [&](const Stop& stop) { return stop.cut == step; }))
      return fmt::format(
          "optimizer({}) took no step in this batch, and so may take one in others; hint: step every optimizer in "
          "every batch",
          i);
  }
  return "";
}

std::string ManualRecording::finish() {
  std::string why_not = StepRecording::finish();
  if (!why_not.empty()) return why_not;
  script_ = std::move(watched_script_);
  gradients_of_part_.resize(results_.logs.size());
  for (size_t number = 0; number < results_.gradients.size(); ++number) {
    const Gradient& gradient = results_.gradients[number];
    if (!watcher_->is_made(gradient.tensor)) return "a gradient is a tensor that was there before the step";
    const auto parameter = std::find_if(parameters_.begin(), parameters_.end(),
                                        [&](const at::Tensor& one) { return one.is_same(gradient.parameter); });
    gradients_of_part_[watcher_->part_of(gradient.tensor)].push_back(
        {.gradient = number, .parameter = static_cast<size_t>(parameter - parameters_.begin())});
  }
  return "";
}

// ---- Replays.

StepOutput ManualRecording::replay(const std::function<void(const ManualCut& cut, const at::Tensor& loss)>& at_cut) {
  // A hook that throws leaves no optimizer toggled.
  struct Untoggling {
    ~Untoggling() { recording.show_flags(recording.script_.end); }
    ManualRecording& recording;
  } const untoggling{*this};
  for (size_t part = 0; part < script_.stops.size(); ++part) {
    const Stop& stop = script_.stops[part];
    replay_until(part, stop.view);
    at::Tensor loss;
    if (stop.cut.kind == ManualCut::Kind::kBeforeBackward) {
      loss = handed_out(results_.losses[stop.loss]);
      loss.set_requires_grad(true);
    }
    const std::vector<Gradient> present = present_gradients();
    at_cut(stop.cut, loss);
    for (size_t i = 0; i < parameters_.size(); ++i)
      if (parameters_[i].requires_grad() != stop.view.parameters[i].requires_grad)
        throw Error("graph",
                    "a hook changed `requires_grad` of a parameter inside of a replayed training_step; hint: "
                    "on_train_batch_start or on_train_batch_end, or graph: false");
    if (!put_in_place(present))
      throw Error("graph",
                  "a hook took a gradient away inside of training_step, which a replayed step needs; hint: clear it in "
                  "training_step, or graph: false");
    if (stop.cut.optimizer != nullptr)
      dynamic_cast<optim::FusedOptimizer&>(stop.cut.optimizer->optimizer()).write_learning_rates();
  }
  replay_until(script_.stops.size(), script_.end);
  replay_part(script_.stops.size() + 1);
  return output();
}

void ManualRecording::replay_until(size_t part, const View& view) {
  renew_before(part, view);
  replay_part(part);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    const Shown& shown = view.parameters[i];
    if (shown.gradient == Shown::kNoGradient) {
      if (parameter.grad().defined()) parameter.mutable_grad().reset();
    } else if (shown.gradient >= 0) {
      const at::Tensor& gradient = results_.gradients[static_cast<size_t>(shown.gradient)].tensor;
      if (!parameter.grad().is_same(gradient)) parameter.mutable_grad() = gradient;
    }
  }
  show_flags(view);
}

void ManualRecording::show_flags(const View& view) {
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].requires_grad() != view.parameters[i].requires_grad)
      parameters_[i].set_requires_grad(view.parameters[i].requires_grad);
  for (size_t i = 0; i < context_.optimizers.size(); ++i) context_.optimizers[i]->set_flags(view.optimizers[i]);
}

void ManualRecording::renew_before(size_t part, const View& view) {
  bool renewed = false;
  for (const Written& written : gradients_of_part_[part]) {
    const Gradient& gradient = results_.gradients[written.gradient];
    const bool is_first = std::any_of(added_to_.begin(), added_to_.end(),
                                      [&](const Gradient& first) { return first.tensor.is_same(gradient.tensor); });
    // The parameter has that of the last step, and lets go of it in this part or goes on to show it.
    const bool lets_go = gradient.parameter.grad().is_same(gradient.tensor) &&
                         view.parameters[written.parameter].gradient != Shown::kFirstGradient;
    renewed |= renew_if_held(gradient, (is_first ? 1 : 0) + (lets_go ? 1 : 0));
  }
  if (renewed) take_results();
}

}  // namespace levin
