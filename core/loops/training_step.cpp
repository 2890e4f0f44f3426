#include <levin/core/loops/training_step.h>

#include <levin/core/base/error.h>
#include <levin/core/base/host_scalar.h>
#include <levin/core/connectors/error_context.h>
#include <levin/core/interfaces/divided_examples.h>
#include <levin/core/interfaces/independent_steps.h>
#include <levin/core/precision/full_precision.h>
#include <levin/core/precision/precision.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace levin {
namespace {

/// Sets a number that recorded steps read.
void write(at::Tensor& number, double value) {
  if (!number.defined()) {
    number = at::empty({}, at::kDouble);
    number.unsafeGetTensorImpl()->set_wrapped_number(true);  // it has no say in the type of a result
  }
  *number.mutable_data_ptr<double>() = value;
}

void require_scalar_loss(const at::Tensor& loss) {
  if (loss.numel() != 1)
    throw Error("module",
                fmt::format("training_step must return a scalar loss; got shape {}; hint: take its mean or sum",
                            c10::str(loss.sizes())));
  if (!loss.requires_grad())
    throw Error("module",
                "the loss of training_step does not depend on any parameter that requires a gradient; hint: it may "
                "have been detached, computed without gradients, or all parameters may be frozen");
}

}  // namespace

TrainingStep::TrainingStep(const ResolvedOptions& options, TrainerState& state, Tracer& tracer,
                           CallbackConnector& callbacks, LoggerConnector& logger, OptimizerConnector& optimizers)
    : options_(options),
      state_(state),
      tracer_(tracer),
      strategy_(*options.strategy),
      model_(strategy_.divided_model()),
      precision_(*options.precision),
      callbacks_(callbacks),
      logger_(logger),
      optimizers_(optimizers),
      closure_([this] { return run_closure(); }) {}

const StepOutput& TrainingStep::run(const Batch& batch, const BatchInfo& info) {
  FitProgress& progress = state_.progress;
  Module& module = *state_.module;
  stepped_ = false;
  batch_ = &batch;
  info_ = info;
  if (recorded_ != nullptr) recorded_->end_hooks();
  output_ = StepOutput();
  manual_loss_.reset();
  data_ended_ = false;
  runner_ = &ordinary_;
  scaling_ = {};
  if (recorded_ != nullptr && info.uneven_inputs)
    recorded_->give_up(
        "ranks ask each other in each step who has data left, of data sets without a size and with "
        "use_distributed_sampler: false");
  const bool may_record = recorded_ != nullptr && !guard_ && !body_ && !info.uneven_inputs && info.has_data;
  if (!module.automatic_optimization) {
    const bool weighs_alike = info.weight_is_known ? info.weight == 1 : reduce_weights();
    const bool records = may_record && weighs_alike;
    // What it adds to are the gradients that the last one left, if any.
    if (records) begin_recorded({.adds = true});
    run_manually();
    if (records) recorded_->end(output_, scaling_);
    runner_ = &ordinary_;  // what a later hook does is none of the step
    return output_;
  }
  begin_window();
  window_ = {.sync = progress.window_index + 1 == progress.window_size || info.is_last,
             .index = progress.window_index,
             .size = progress.window_size,
             .uneven_inputs = info.uneven_inputs,
             .has_next = info.has_next};
  closure_ran_ = false;
  const double quotient = is_divided_ ? divisor_ / default_weight() : 1;
  if (may_record) {
    if (is_divided_) {
      write(recorded_divisor_, divisor_);
      write(recorded_quotient_, quotient);
    }
    begin_recorded({.adds = progress.window_has_gradients, .ends = window_.sync, .divides = quotient != 1});
  }
  if (window_.sync && !optimizers_.all().empty()) {
    call_user(state_, "optimizer_step", module,
              [&] { module.optimizer_step(progress.epoch, info.batch_idx, *optimizers_.all().front(), closure_); });
    if (!closure_ran_)
      throw Error("module",
                  "optimizer_step did not run its closure, so nothing was trained; hint: call "
                  "optimizer.step(closure), or closure() yourself");
  } else {
    run_closure();
    // What a hook has clipped goes on adding up.
    for (OptimizerHandle* optimizer : optimizers_.all()) precision_.restore_scale(optimizer->optimizer(), false);
  }
  if (window_.sync) end_window();
  weight_ = {};
  if (may_record) recorded_->end(output_, scaling_);
  runner_ = &ordinary_;
  if (info.has_data) logger_.train_metrics().weigh(output_.weight());
  progress.window_index = window_.sync ? 0 : progress.window_index + 1;
  return output_;
}

void TrainingStep::begin_recorded(const WindowPlace& place) {
  if (StepRunner* runner = recorded_->begin(*batch_, place)) runner_ = runner;
  batch_ = &runner_->batch(*batch_);
}

/// Finds out what the losses of a window are divided by while they are added up: the mean of the ranks' examples in it,
/// where that is known, so that nothing is left to divide by. It is the same on all ranks.
void TrainingStep::begin_window() {
  FitProgress& progress = state_.progress;
  const int64_t ranks = strategy_.data_parallel_rank().size;
  if (progress.window_index == 0) {
    const int64_t accumulate = optimizers_.accumulation().at(progress.epoch);
    progress.window_size = info_.remaining ? std::min(accumulate, *info_.remaining + 1) : accumulate;
    progress.window_examples = options_.given.weigh_losses ? info_.examples_of_window : progress.window_size * ranks;
    progress.window_usual_examples = info_.usual_examples;
    progress.window_has_gradients = false;
    progress.window_weight = 0;
  }
  const bool is_alone = strategy_.world_size() == 1 || find_independent_steps(strategy_) != nullptr;
  is_divided_ = !is_alone || progress.window_size > 1;
  // Ranks that divide examples have losses of their own.
  const auto losses = static_cast<double>(loss_rank(strategy_).size);
  divisor_ = progress.window_examples > 0 ? static_cast<double>(progress.window_examples) / losses
                                          : static_cast<double>(progress.window_size * progress.window_usual_examples) *
                                                static_cast<double>(ranks) / losses;
  // A checkpoint of an earlier version has none; batches counted alike.
  if (!progress.window_weight.defined())
    progress.window_weight =
        divisor_ * static_cast<double>(progress.window_index) / static_cast<double>(progress.window_size);
}

/// The module calls backward and steps its optimizers itself.
void TrainingStep::run_manually() {
  {
    const ProfilerSpan span(tracer_.profiler(), "strategy.manual_step");
    output_ = guarded([this] { return strategy_.manual_step(*batch_, *this); });
  }
  info_.weight = 1;  // of a backward that a hook runs
  if (info_.has_data) logger_.train_metrics().weigh(output_.weight());
  end_window();
}

StepOutput TrainingStep::run_manual_step(c10::function_ref<StepOutput()> run) {
  bool steps = false;  // in the part under way
  const auto count_step = [&] {
    if (!std::exchange(steps, false)) return;
    stepped_ = true;
    ++state_.progress.global_step;
  };
  StepOutput output = runner_->manual_step(run, [&](const ManualCut& cut, const at::Tensor& loss) {
    count_step();
    if (cut.kind == ManualCut::Kind::kBeforeBackward) manual_loss_ = loss;
    run_hooks_of(cut, loss);
    steps = cut.kind == ManualCut::Kind::kBeforeStep;
  });
  count_step();
  return output;
}

/// As training_step runs them.
void TrainingStep::run_hooks_of(const ManualCut& cut, const at::Tensor& loss) {
  const ForwardScope scope(precision_);
  if (cut.kind == ManualCut::Kind::kBeforeStep)
    return callbacks_.call("on_before_optimizer_step", &Callback::on_before_optimizer_step,
                           &Module::on_before_optimizer_step, *cut.optimizer);
  const FullPrecision outside_of_autocast;
  if (cut.kind == ManualCut::Kind::kBeforeBackward)
    callbacks_.call("on_before_backward", &Callback::on_before_backward, &Module::on_before_backward, loss);
  else
    finish_backward(cut);
}

void TrainingStep::finish_backward(const ManualCut& cut) {
  strategy_.combine_gradients(cut.uncombined);
  after_backward();
}

/// Gradients of several optimizers of one batch have one scale, which therefore changes when all have stepped. Those
/// that wait for a step by hand in a later batch change with it.
void TrainingStep::end_window() {
  std::vector<OptimizerHandle*> waiting;
  if (!state_.module->automatic_optimization) {
    for (OptimizerHandle* optimizer : optimizers_.all()) {
      if (!optimizer->awaits_step()) continue;
      precision_.restore_scale(optimizer->optimizer(), /*stepped=*/false);
      waiting.push_back(optimizer);
    }
  }
  if (!stepped_ && !scale_waits_) return precision_.abandon_window();
  // What the strategy keeps cannot: the scale changes when it is combined.
  scale_waits_ = !waiting.empty() && model_.keeps_gradients_back();
  if (scale_waits_) return;
  const ProfilerSpan span(tracer_.profiler(), "precision.end_window");
  precision_.abandon_window();  // ranks with shards have not told each other of what no step has used
  runner_->end_window([&] {
    for (OptimizerHandle* optimizer : waiting) precision_.note_waiting(optimizer->optimizer());
    precision_.end_window();
  });
  const bool boundary = state_.progress.global_step % options_.given.log_every_n_steps == 0;
  state_.progress.scheduler_steps_held_back += precision_.take_skipped_steps(/*wait=*/boundary);
}

/// What the strategy keeps back is not in the gradients that zero_grad clears.
void TrainingStep::drop_gradients_without_step() {
  if (!model_.keeps_gradients_back()) return;
  std::vector<at::Tensor> waiting;
  for (const OptimizerHandle* optimizer : optimizers_.all())
    if (optimizer->awaits_step())
      waiting.insert(waiting.end(), optimizer->parameters().begin(), optimizer->parameters().end());
  model_.drop_kept_gradients(/*but_of=*/waiting);
}

void TrainingStep::combine_kept_gradients() {
  if (state_.module->automatic_optimization) return;
  drop_gradients_without_step();
  if (!model_.keeps_gradients_back()) return;
  model_.combine_kept_gradients();
  stepped_ = false;
  end_window();
}

bool TrainingStep::schedulers_are_due() {
  if (!stepped_) return false;
  if (state_.progress.scheduler_steps_held_back == 0) return true;
  --state_.progress.scheduler_steps_held_back;
  return false;
}

at::Tensor TrainingStep::run_closure() {
  closure_ran_ = true;
  is_weighed_ = false;
  // An optimizer that evaluates the loss itself does so for one batch, as often as it likes.
  if (window_.index == 0) state_.progress.window_weight = 0;
  const ProfilerSpan span(tracer_.profiler(), "strategy.forward_backward");
  in_backward_ = false;
  // The innermost place counts; without this one it would be optimizer_step, which calls the closure.
  output_ =
      noting_errors([this] { return guarded([this] { return strategy_.forward_backward(*batch_, *this, window_); }); },
                    [this](ErrorNotes& notes) {
                      const Module& module = *state_.module;
                      if (in_backward_ && notes.place.empty()) notes.place = "backward";
                      note_call(notes, state_, {.name = "training_step", .type = typeid(module)});
                    });
  return output_.loss();
}

StepOutput TrainingStep::step(Module& module, const Batch& batch) {
  const Activity activity(tracer_, "training_step");
  const auto run = [&] {
    const ForwardScope scope(precision_);
    return call_user(
        state_, "training_step", module,
        [&] { return body_ ? body_(module, batch) : module.training_step(batch, info_.batch_idx); }, batch,
        info_.batch_idx);
  };
  StepOutput output = module.automatic_optimization ? runner_->step(run) : run_manual_step(run);
  check_weight(output);
  return output;
}

StepOutput TrainingStep::step_end(StepOutput output) {
  runner_->step_end(output, [&] {
    const ForwardScope scope(precision_);
    output = call_user(state_, "training_step_end", *state_.module,
                       [&] { return state_.module->training_step_end(std::move(output)); });
  });
  check_weight(output);
  return output;
}

/// A loss of weight zero may be the mean of nothing. One that is a number stays: other ranks may wait for its backward.
void TrainingStep::check_weight(StepOutput& output) {
  output.weight().require_valid();
  if (output.weight().on_host() != 0.0 || !output.has_loss()) return;
  const at::Tensor& loss = output.loss();
  if (!loss.device().is_cpu() || loss.numel() != 1 || std::isfinite(read_host_scalar(loss))) return;
  runner_->be_ordinary();  // there is no backward
  output.loss() = at::Tensor();
}

std::shared_ptr<void> TrainingStep::forward_scope() { return std::make_shared<ForwardScope>(precision_); }

void TrainingStep::before_backward(StepOutput& output) {
  require_scalar_loss(output.loss());
  in_backward_ = true;
  if (!state_.progress.window_has_gradients || optimizers_.all().empty() ||
      optimizers_.all().front()->needs_closure()) {
    state_.progress.window_has_gradients = true;
    for (OptimizerHandle* optimizer : optimizers_.all()) {
      callbacks_.call("on_before_zero_grad", &Callback::on_before_zero_grad, &Module::on_before_zero_grad, *optimizer);
      const ProfilerSpan span(tracer_.profiler(), "zero_grad");
      runner_->zero_grad([&] {
        call_user(state_, "optimizer_zero_grad", *state_.module,
                  [&] { state_.module->optimizer_zero_grad(*optimizer); });
      });
    }
  }
  runner_->before_backward(output.loss(), [&] {
    callbacks_.call("on_before_backward", &Callback::on_before_backward, &Module::on_before_backward, output.loss());
  });
}

/// Weight of the batch where the module gives none.
double TrainingStep::default_weight() const {
  return options_.given.weigh_losses ? static_cast<double>(std::max<int64_t>(info_.examples, 1)) : 1;
}

void TrainingStep::weigh(const StepOutput& output, double share) {
  if (!info_.has_data)
    weight_ = 0;
  else if (options_.given.weigh_losses && output.weight().defined())
    weight_ = output.weight();
  else
    weight_ = default_weight() * share;
  is_weighed_ = true;
  gives_weights_ = gives_weights_ || output.weight().defined();
  if (is_divided_ || weight_.on_host())
    state_.progress.window_weight += weight_;
  else
    state_.progress.window_weight = 1;  // a single loss on a device: its weight divides out
}

at::Tensor TrainingStep::weighed(const at::Tensor& loss) {
  const at::Tensor& tensor = weight_.tensor();
  if (tensor.defined() && (!tensor.device().is_cpu() || (is_divided_ && loss.device().is_cpu()))) {
    const at::Tensor weight = weight_.on(tensor.device());
    // A negative weight or NaN makes the gradients NaN: to throw, the host would have to wait for the device.
    at::Tensor factor = at::where(weight >= 0, 1.0, std::numeric_limits<double>::quiet_NaN());
    if (is_divided_) factor = factor * runner_->divide(weight, divisor_, recorded_divisor_);
    // A loss of weight zero may be the mean of nothing.
    return at::where(weight == 0, 0.0, loss * factor.to(loss.scalar_type()));
  }
  const double weight = *weight_.on_host();
  if (weight == 0) return loss.masked_fill(at::ones_like(loss, at::kBool), 0);
  if (!is_divided_) return loss;
  const double quotient = divisor_ / weight;
  if (quotient == 1) return loss;
  const bool is_default = !tensor.defined() && weight == default_weight();
  return is_default ? runner_->divide(loss, quotient, recorded_quotient_) : loss / quotient;
}

void TrainingStep::backward(StepOutput& output) {
  const Activity activity(tracer_, "backward");
  if (!is_weighed_) weigh(output, 1);
  is_weighed_ = false;
  runner_->backward([&] {
    const at::Tensor loss = weighed(output.loss());
    noting_errors([&] { state_.module->backward(precision_.scale_loss(loss)); },
                  [](ErrorNotes& notes) {
                    if (notes.place.empty()) notes.place = "backward";
                  });
  });
}

void TrainingStep::after_backward() {
  callbacks_.call("on_after_backward", &Callback::on_after_backward, &Module::on_after_backward);
}

void TrainingStep::drive_optimizer(OptimizerHandle& optimizer, const OptimizerHandle::Closure& closure) {
  StepScaling scaling;
  bool ready = true;
  if (optimizer.needs_closure() && closure) {
    // The optimizer evaluates the model itself, as often as it likes; the hooks run at every evaluation.
    optimizer.take_step({}, [&] {
      at::Tensor loss = closure();
      if (state_.module->automatic_optimization) average_over_window();
      if (!loss.defined())
        throw Error(
            "module",
            "training_step gave no loss to an optimizer that needs one (LBFGS, SAM); a batch cannot be skipped");
      prepare_step(optimizer, scaling);
      return mean_over_ranks(loss);
    });
  } else {
    if (closure) closure();
    // A window of which every batch was skipped has nothing to step with.
    ready = !state_.module->automatic_optimization || state_.progress.window_has_gradients;
    if (ready && state_.module->automatic_optimization) ready = average_over_window();
    if (ready) {
      prepare_step(optimizer, scaling);
      const Activity activity(tracer_, "optimizer_step");
      runner_->update([&] { clip_gradients(optimizer); },
                      [&] {
                        if (IndependentSteps* steps = find_independent_steps(strategy_))
                          steps->take_step(optimizer, info_.batch_idx);
                        else
                          optimizer.take_step(scaling);
                      });
      const ProfilerSpan span(tracer_.profiler(), "strategy.finish_step");
      model_.finish_step();
    }
  }
  if (!ready) return;
  precision_.note_step(optimizer.optimizer());
  stepped_ = true;
  ++state_.progress.global_step;
}

/// Manual optimization: a module may run backward as often as it likes, so that ranks tell each other beforehand who
/// has data, and how much. Returns whether all have as much.
bool TrainingStep::reduce_weights() {
  const ProfilerSpan span(tracer_.profiler(), "strategy.uneven_inputs");
  const double own = info_.has_data ? default_weight() : 0;
  const at::Tensor means = at::tensor({own, own * own, info_.has_next ? 1.0 : 0.0}, at::kDouble);
  strategy_.collective().all_reduce(means, ReduceOp::kMean)->wait();
  const double* mean = means.const_data_ptr<double>();
  info_.weight = mean[0] > 0 ? own / mean[0] : own;
  data_ended_ = mean[2] == 0;
  return mean[1] == mean[0] * mean[0];  // whole numbers
}

/// An optimizer that goes by the loss must see the same one on every rank: that of the averaged gradients.
at::Tensor TrainingStep::mean_over_ranks(const at::Tensor& loss) {
  if (strategy_.world_size() == 1 || find_independent_steps(strategy_) != nullptr) return loss;
  const ProfilerSpan span(tracer_.profiler(), "strategy.mean_loss");
  const auto totals = strategy_.window_totals();
  at::Tensor mean = loss.detach();
  if (state_.module->automatic_optimization && totals)
    mean = mean * weight_.share_of(totals->mean_weight, mean.device(), mean.scalar_type());
  else
    mean = mean * info_.weight;
  strategy_.collective().all_reduce(mean, ReduceOp::kMean)->wait();
  return mean;
}

/// Divides the gradients by the weight of the window over all ranks, as far as that is not what its losses were divided
/// by: a batch was skipped, or the module or data of unknown size have given weights. Returns false where there was no
/// loss at all.
bool TrainingStep::average_over_window() {
  if (!is_divided_) return state_.progress.window_weight.on_host() != 0.0;
  const ProfilerSpan span(tracer_.profiler(), "strategy.window_weight");
  const auto totals = strategy_.window_totals();
  if (totals && window_.uneven_inputs) data_ended_ = !totals->any_next;
  if (totals && !totals->any_loss) return false;
  const bool is_one_rank = strategy_.world_size() == 1 || find_independent_steps(strategy_) != nullptr;
  if (!totals && !is_one_rank) {
    if (!gives_weights_) return true;  // What its ranks combine, if anything, are sums over the examples.
    throw Error("module", fmt::format("training_step gave its loss a weight, but strategy '{}' does not say what the "
                                      "weights of its ranks are together; hint: it must override window_totals()",
                                      strategy_.name()));
  }
  const LossWeight& mean_weight = totals ? totals->mean_weight : state_.progress.window_weight;
  if (const auto on_host = mean_weight.on_host()) {
    if (*on_host == 0) return false;
    const double factor = divisor_ / *on_host;
    // Sums over ranks may be of the gradients' type.
    if (std::abs(factor - 1) > (loss().defined() && loss().scalar_type() == at::kDouble ? 1e-12 : 3e-7))
      optimizers_.scale_gradients(at::scalar_tensor(factor, at::kDouble));
  } else {
    const at::Tensor mean = mean_weight.on(mean_weight.tensor().device());
    optimizers_.scale_gradients(at::where(mean == 0, 0.0, divisor_ / mean));  // of nothing
  }
  return true;
}

void TrainingStep::prepare_step(OptimizerHandle& optimizer, StepScaling& scaling) {
  {
    const ProfilerSpan span(tracer_.profiler(), "strategy.prepare_step");
    model_.prepare_step();
  }
  if (find_independent_steps(strategy_) == nullptr) optimizers_.require_taken_gradients(optimizer);
  {
    const ProfilerSpan span(tracer_.profiler(), "precision.unscale");
    scaling = runner_->unscale([&] { return precision_.unscale(optimizer.optimizer()); });
    scaling_ = scaling;
    if (scaling.found_inf.defined()) model_.parallel_model().combine_found_inf(scaling.found_inf);
  }
  runner_->interrupt({.kind = ManualCut::Kind::kBeforeStep, .optimizer = &optimizer}, {}, [&] {
    callbacks_.call("on_before_optimizer_step", &Callback::on_before_optimizer_step, &Module::on_before_optimizer_step,
                    optimizer);
  });
  runner_->clip([&] { clip_gradients(optimizer); });
}

void TrainingStep::clip_gradients(OptimizerHandle& optimizer) {
  if (options_.clip_value <= 0 || !state_.module->automatic_optimization) return;
  const ProfilerSpan span(tracer_.profiler(), "clip_gradients");
  call_user(state_, "configure_gradient_clipping", *state_.module, [&] {
    state_.module->configure_gradient_clipping(optimizer, options_.clip_value, options_.clip_algorithm);
  });
}

void TrainingStep::start_recording() {
  if (options_.given.graph.level() == GraphMode::Level::kOff) return;
  refusal_ = {};
  recorded_ =
      RecordedStep::make(options_, state_, logger_, optimizers_,
                         {.forward = [this](const Batch& batch) { return step_end(step(*state_.module, batch)); },
                          .backward = [this](StepOutput& output) { backward(output); },
                          .update =
                              [this](const StepScaling& scaling) {
                                OptimizerHandle& optimizer = *optimizers_.all().front();
                                clip_gradients(optimizer);
                                optimizer.take_step(scaling);
                              }},
                         refusal_);
}

void TrainingStep::tell_refusal() {
  const bool is_in_lockstep = strategy_.world_size() > 1 && find_independent_steps(strategy_) == nullptr;
  if (is_in_lockstep && options_.given.graph.level() != GraphMode::Level::kOff) refusal_.tell(strategy_.collective());
}

void TrainingStep::manual_backward(const at::Tensor& loss, const BackwardOptions& options) {
  const FullPrecision outside_of_autocast;  // of the forward that training_step runs in
  if (loss.numel() != 1)
    throw Error("module", fmt::format("manual_backward() needs a scalar loss; got shape {}; hint: take its mean or sum",
                                      c10::str(loss.sizes())));
  if (!loss.requires_grad())
    throw Error("module",
                "the loss given to manual_backward() does not depend on any parameter that requires a gradient; hint: "
                "it may have been detached, or come from parameters of another optimizer than the one toggled");
  manual_loss_ = runner_->kept(loss);
  at::Tensor start = loss;
  runner_->interrupt({.kind = ManualCut::Kind::kBeforeBackward}, start, [&] {
    runner_->before_backward(start, [&] {
      callbacks_.call("on_before_backward", &Callback::on_before_backward, &Module::on_before_backward, start);
    });
  });
  drop_gradients_without_step();
  const auto& optimizers = optimizers_.all();
  const bool toggled = std::any_of(optimizers.begin(), optimizers.end(),
                                   [](const OptimizerHandle* optimizer) { return optimizer->is_toggled(); });
  for (OptimizerHandle* optimizer : optimizers)
    if (optimizer->is_toggled() || !toggled)
      precision_.restore_scale(optimizer->optimizer(), /*stepped=*/!optimizer->awaits_step());
  {
    const Activity activity(tracer_, "backward");
    if (info_.weight != 1) start = start * info_.weight;
    strategy_.manual_backward(precision_.scale_loss(start), options);
  }
  for (OptimizerHandle* optimizer : optimizers)
    if (optimizer->is_toggled() || !toggled) optimizer->note_backward();
  const ManualCut cut{.kind = ManualCut::Kind::kAfterBackward, .uncombined = strategy_.uncombined()};
  runner_->interrupt(cut, {}, [&] { finish_backward(cut); });
}

}  // namespace levin
