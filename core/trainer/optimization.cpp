#include <levin/core/trainer/optimization.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/optim/group_options.h>
#include <levin/core/optim/schedulers.h>

#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <algorithm>

namespace levin {
namespace {

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

Optimization::Optimization(RankCore& core, Hooks& hooks)
    : core_(core), hooks_(hooks), closure_([this] { return run_closure(); }) {}

void Optimization::configure() {
  core_.optimizer_handles.clear();
  core_.optimizer_list.clear();
  core_.schedulers.clear();
  base_rates_.clear();
  core_.parameter_names = core_.strategy().parameter_names(core_.module());
  const optim::ParameterNames module_names(core_.module());
  const OptimizerConfigs configs = call_user(core_, "configure_optimizers", core_.module(),
                                             [this] { return core_.module().configure_optimizers(); });
  if (configs.size() > 1 && core_.module().automatic_optimization)
    throw Error("module",
                fmt::format("configure_optimizers gave {} optimizers, which automatic optimization cannot step; "
                            "valid: one; hint: set automatic_optimization = false and step them in training_step",
                            configs.size()));
  if (configs.empty())
    log::rank_zero_warning("configure_optimizers gave no optimizer: training_step runs, but no parameter changes");
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers;
  for (const auto& config : configs) {
    if (config.optimizer == nullptr) throw Error("module", "configure_optimizers gave an empty optimizer");
    optimizers.push_back(config.optimizer);
  }
  for (const auto& optimizer : optimizers) {
    for (const auto& group : optimizer->param_groups())
      for (const auto& parameter : group.params()) module_names.require(parameter);
    core_.strategy().check_optimizer(*optimizer);
  }
  if (const double scale = core_.strategy().learning_rate_scale(); scale != 1)
    for (const auto& optimizer : optimizers)
      for (auto& group : optimizer->param_groups()) group.options().set_lr(group.options().get_lr() * scale);
  const auto driver = [this](OptimizerHandle& optimizer, const OptimizerHandle::Closure& closure) {
    drive_step(optimizer, closure);
  };
  const auto stand_in = [this](const at::Tensor& parameter) { return core_.strategy().stand_in(parameter); };
  for (const auto& config : configs) {
    core_.optimizer_handles.push_back(std::make_unique<OptimizerHandle>(
        config.optimizer, static_cast<int64_t>(core_.optimizer_handles.size()), driver, stand_in));
    core_.optimizer_list.push_back(core_.optimizer_handles.back().get());
    if (core_.optimizer_handles.back()->needs_closure() && core_.precision().scales_loss())
      throw ConfigError(fmt::format(
          "trainer.precision '{}' scales the loss, which an optimizer that evaluates the loss itself (LBFGS) "
          "cannot follow; valid: 32-true, 64-true, bf16-mixed",
          core_.precision().name()));
    if (core_.optimizer_handles.back()->needs_closure() && !core_.accumulation.is_off())
      throw ConfigError(
          "trainer.accumulate_grad_batches does not work with an optimizer that evaluates the loss itself "
          "(LBFGS); hint: leave it at 1");
    base_rates_.push_back(optim::learning_rates(*config.optimizer));
    std::vector<SchedulerConfig> scheduler_configs = config.more_schedulers;
    if (config.scheduler) scheduler_configs.insert(scheduler_configs.begin(), config.scheduler);
    for (const auto& scheduler_config : scheduler_configs) {
      auto scheduler = optim::make_scheduler(scheduler_config, planned_steps(scheduler_config));
      if (scheduler == nullptr) continue;
      if (scheduler->needs_metric() && scheduler_config.monitor.empty())
        throw ConfigError(
            fmt::format("the scheduler '{}' follows a metric; hint: set SchedulerConfig.monitor to a logged name",
                        scheduler_config.name));
      scheduler->attach(*config.optimizer, base_rates_.back());
      core_.optimizer_list.back()->add_scheduler(*scheduler);
      core_.schedulers.push_back({std::move(scheduler), scheduler_config, base_rates_.size() - 1});
    }
  }
}

int64_t Optimization::planned_steps(const SchedulerConfig& config) const {
  const std::optional<int64_t> steps = core_.estimated_steps();
  if (config.interval == Interval::kStep) return steps ? *steps / config.frequency : -1;
  std::optional<int64_t> epochs = core_.resolved.max_epochs;
  if (steps && core_.train_batches && *core_.train_batches > 0) {
    const int64_t by_steps = core_.accumulation.epochs(*steps, *core_.train_batches);
    epochs = epochs ? std::min(*epochs, by_steps) : by_steps;
  }
  return epochs ? *epochs / config.frequency : -1;
}

double Optimization::learning_rate() const {
  return base_rates_.front().front() / core_.strategy().learning_rate_scale();
}

void Optimization::set_learning_rate(double rate) {
  const double first = rate * core_.strategy().learning_rate_scale();
  for (size_t i = 0; i < base_rates_.size(); ++i) {
    auto& groups = core_.optimizer_handles[i]->optimizer().param_groups();
    for (size_t group = 0; group < base_rates_[i].size(); ++group)
      groups[group].options().set_lr(first * (base_rates_[i][group] / base_rates_.front().front()));
  }
}

void Optimization::restart_schedules(std::optional<double> rate) {
  if (rate) set_learning_rate(*rate);
  for (size_t i = 0; i < base_rates_.size(); ++i) {
    torch::optim::Optimizer& optimizer = core_.optimizer_handles[i]->optimizer();
    if (rate) base_rates_[i] = optim::learning_rates(optimizer);
    for (size_t group = 0; group < base_rates_[i].size(); ++group)
      optimizer.param_groups()[group].options().set_lr(base_rates_[i][group]);
  }
  for (auto& scheduled : core_.schedulers) {
    scheduled.scheduler->set_estimated_total(planned_steps(scheduled.config));
    scheduled.scheduler->attach(core_.optimizer_handles[scheduled.optimizer]->optimizer(),
                                base_rates_[scheduled.optimizer]);
  }
}

std::vector<std::shared_ptr<torch::optim::Optimizer>> Optimization::optimizers() const {
  std::vector<std::shared_ptr<torch::optim::Optimizer>> all;
  for (const auto& handle : core_.optimizer_handles) all.push_back(handle->shared_optimizer());
  return all;
}

const StepOutput& Optimization::run(const Batch& batch, const Place& place) {
  FitProgress& progress = core_.progress;
  core_.stepped = false;
  batch_ = &batch;
  place_ = place;
  output_ = StepOutput();
  data_ended_ = false;
  if (!core_.module().automatic_optimization) {
    if (place.counts_participants) count_participants();
    core_.loss_weight = place_.weight;
    {
      const ProfilerSpan span(core_.profiler, "strategy.manual_step");
      output_ = guarded([&] { return core_.strategy().manual_step(batch, *this); });
    }
    core_.loss_weight = 1;
    end_window();
    return output_;
  }
  const auto& remaining = place.remaining;
  if (progress.window_index == 0) {
    const int64_t accumulate = core_.accumulation.at(progress.epoch);
    progress.window_size = remaining ? std::min(accumulate, *remaining + 1) : accumulate;
    progress.window_has_gradients = false;
  }
  window_ = {.sync = progress.window_index + 1 == progress.window_size || place.is_last,
             .index = progress.window_index,
             .size = progress.window_size,
             .counts_participants = place.counts_participants,
             .participation = place.weight,
             .has_next = place.has_next};
  closure_ran_ = false;
  replays_ = false;
  replays_ = graphs_ != nullptr && !guard_ && window_.size == 1 && !place.counts_participants && place.weight == 1 &&
             graphs_->begin(batch);
  if (window_.sync && !core_.optimizer_handles.empty()) {
    call_user(core_, "optimizer_step", core_.module(), [&] {
      core_.module().optimizer_step(progress.epoch, place.batch_idx, *core_.optimizer_list.front(), closure_);
    });
    if (!closure_ran_)
      throw Error("module",
                  "optimizer_step did not run its closure, so nothing was trained; hint: call "
                  "optimizer.step(closure), or closure() yourself");
  } else {
    run_closure();
  }
  if (window_.sync) end_window();
  progress.window_index = window_.sync ? 0 : progress.window_index + 1;
  return output_;
}

/// Gradients of several optimizers of one batch have one scale, which therefore changes when all have stepped.
void Optimization::end_window() {
  if (!core_.stepped) return;
  const ProfilerSpan span(core_.profiler, "precision.end_window");
  if (replays_)
    graphs_->end_window();
  else
    core_.precision().end_window();
  const bool boundary = core_.progress.global_step % core_.options.log_every_n_steps == 0;
  core_.progress.scheduler_steps_held_back += core_.precision().take_skipped_steps(/*wait=*/boundary);
}

bool Optimization::schedulers_are_due() {
  if (!core_.stepped) return false;
  if (core_.progress.scheduler_steps_held_back == 0) return true;
  --core_.progress.scheduler_steps_held_back;
  return false;
}

at::Tensor Optimization::run_closure() {
  closure_ran_ = true;
  const ProfilerSpan span(core_.profiler, "strategy.forward_backward");
  output_ = guarded([this] { return core_.strategy().forward_backward(*batch_, *this, window_); });
  return output_.loss();
}

StepOutput Optimization::step(Module& module, const Batch& batch) {
  const Activity activity(core_, "training_step");
  if (replays_) return graphs_->forward();
  const ForwardScope scope(core_.precision());
  return call_user(
      core_, "training_step", module, [&] { return module.training_step(batch, place_.batch_idx); }, batch,
      place_.batch_idx);
}

StepOutput Optimization::step_end(StepOutput output) {
  if (replays_) return output;  // The graph is of both.
  const ForwardScope scope(core_.precision());
  return call_user(core_, "training_step_end", core_.module(),
                   [&] { return core_.module().training_step_end(std::move(output)); });
}

void Optimization::before_backward(StepOutput& output) {
  require_scalar_loss(output.loss());
  if (!core_.progress.window_has_gradients || core_.optimizer_list.empty() ||
      core_.optimizer_list.front()->needs_closure()) {
    core_.progress.window_has_gradients = true;
    for (OptimizerHandle* optimizer : core_.optimizer_list) {
      hooks_.call("on_before_zero_grad", &Callback::on_before_zero_grad, &Module::on_before_zero_grad, *optimizer);
      // Gradients that a graph writes stay where they are.
      if (replays_) continue;
      const ProfilerSpan span(core_.profiler, "zero_grad");
      call_user(core_, "optimizer_zero_grad", core_.module(), [&] { core_.module().optimizer_zero_grad(*optimizer); });
    }
  }
  hooks_.call("on_before_backward", &Callback::on_before_backward, &Module::on_before_backward, output.loss());
}

void Optimization::backward(StepOutput& output) {
  const Activity activity(core_, "backward");
  if (replays_) return graphs_->backward();
  at::Tensor loss = output.loss();
  if (place_.weight != 1) loss = loss * place_.weight;
  if (window_.size > 1) loss = loss / static_cast<double>(window_.size);
  noting_errors([&] { core_.precision().scale_loss(loss).backward(); },
                [](ErrorNotes& notes) {
                  if (notes.place.empty()) notes.place = "backward";
                });
}

void Optimization::after_backward() {
  hooks_.call("on_after_backward", &Callback::on_after_backward, &Module::on_after_backward);
}

void Optimization::drive_step(OptimizerHandle& optimizer, const OptimizerHandle::Closure& closure) {
  StepScaling scaling;
  bool ready = true;
  if (optimizer.needs_closure() && closure) {
    // The optimizer evaluates the model itself, as often as it likes; the hooks run at every evaluation.
    optimizer.take_step({}, [&] {
      at::Tensor loss = closure();
      if (!loss.defined())
        throw Error("module",
                    "training_step gave no loss to an optimizer that needs one (LBFGS); a batch cannot be skipped");
      prepare_step(optimizer, scaling);
      return loss;
    });
  } else {
    if (closure) closure();
    // A window of which every batch was skipped has nothing to step with.
    ready = !core_.module().automatic_optimization || core_.progress.window_has_gradients;
    if (ready && window_.counts_participants && core_.module().automatic_optimization) {
      const ProfilerSpan span(core_.profiler, "strategy.participation");
      const auto [mean, any_next] = core_.strategy().participation();
      data_ended_ = !any_next;
      ready = mean > 0;
      if (ready && mean != 1) scale_gradients(1 / mean);
    }
    if (ready) {
      if (core_.module().automatic_optimization && !window_.counts_participants) scale_partial_window();
      prepare_step(optimizer, scaling);
      const Activity activity(core_, "optimizer_step");
      if (replays_)
        graphs_->update();
      else
        optimizer.take_step(scaling);
      const ProfilerSpan span(core_.profiler, "strategy.finish_step");
      core_.strategy().finish_step();
    }
  }
  if (!ready) return;
  core_.stepped = true;
  ++core_.progress.global_step;
}

/// Manual optimization: a module may run backward as often as it likes, so that ranks tell each other beforehand who
/// has data.
void Optimization::count_participants() {
  const ProfilerSpan span(core_.profiler, "strategy.participation");
  at::Tensor counts = at::tensor({place_.weight, place_.has_next ? 1.0 : 0.0}, at::kDouble).to(core_.device());
  core_.strategy().collective().all_reduce(counts, ReduceOp::kMean)->wait();
  const at::Tensor means = counts.cpu();
  const double* mean = means.const_data_ptr<double>();
  if (mean[0] > 0) place_.weight /= mean[0];
  data_ended_ = mean[1] == 0;
}

/// An unsized loader ended inside a window: what was divided by the window's planned size must be divided by what it
/// holds.
void Optimization::scale_partial_window() {
  const int64_t held = window_.index + 1;
  if (held == window_.size) return;
  scale_gradients(static_cast<double>(window_.size) / static_cast<double>(held));
}

void Optimization::scale_gradients(double factor) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : core_.parameter_names.items())
    if (parameter.grad().defined()) parameter.mutable_grad().mul_(factor);
}

void Optimization::prepare_step(OptimizerHandle& optimizer, StepScaling& scaling) {
  {
    const ProfilerSpan span(core_.profiler, "strategy.prepare_step");
    core_.strategy().prepare_step();
  }
  {
    const ProfilerSpan span(core_.profiler, "precision.unscale");
    scaling = replays_ ? graphs_->unscale() : core_.precision().unscale(optimizer.optimizer());
    if (scaling.found_inf.defined()) core_.strategy().combine_found_inf(scaling.found_inf);
  }
  hooks_.call("on_before_optimizer_step", &Callback::on_before_optimizer_step, &Module::on_before_optimizer_step,
              optimizer);
  if (!replays_) clip_gradients(optimizer);
}

void Optimization::clip_gradients(OptimizerHandle& optimizer) {
  if (core_.resolved.clip_value <= 0 || !core_.module().automatic_optimization) return;
  const ProfilerSpan span(core_.profiler, "clip_gradients");
  call_user(core_, "configure_gradient_clipping", core_.module(), [&] {
    core_.module().configure_gradient_clipping(optimizer, core_.resolved.clip_value, core_.resolved.clip_algorithm);
  });
}

void Optimization::start_graphs() {
  if (!core_.options.cuda_graph) return;
  graphs_ =
      GraphedStep::make(core_, {.forward = [this](const Batch& batch) { return step_end(step(core_.module(), batch)); },
                                .backward = [this](StepOutput& output) { backward(output); },
                                .update =
                                    [this](const StepScaling& scaling) {
                                      OptimizerHandle& optimizer = *core_.optimizer_list.front();
                                      clip_gradients(optimizer);
                                      optimizer.take_step(scaling);
                                    }});
}

void Optimization::step_schedulers(Interval interval, bool plateau) {
  if (!core_.module().automatic_optimization || core_.schedulers.empty()) return;
  const ProfilerSpan span(core_.profiler, "scheduler_step");
  const int64_t count = interval == Interval::kStep ? core_.progress.global_step : core_.progress.epoch + 1;
  for (auto& scheduled : core_.schedulers) {
    if (scheduled.config.interval != interval || scheduled.scheduler->needs_metric() != plateau) continue;
    if (count % scheduled.config.frequency != 0) continue;
    std::optional<double> metric;
    if (plateau) {
      const MetricMap& known = core_.callback_metrics();
      const auto found = known.find(scheduled.config.monitor);
      if (found == known.end()) {
        std::vector<std::string> names;
        for (const auto& [name, value] : known) names.push_back(name);
        const std::string message =
            fmt::format("the scheduler's monitor '{}' was never logged{}", scheduled.config.monitor,
                        valid_names_hint(scheduled.config.monitor, names));
        if (scheduled.config.strict) throw Error("scheduler", message);
        log::rank_zero_warning_once(message);
        continue;
      }
      metric = found->second;
    }
    call_user(core_, "lr_scheduler_step", core_.module(),
              [&] { core_.module().lr_scheduler_step(*scheduled.scheduler, metric); });
  }
}

}  // namespace levin
