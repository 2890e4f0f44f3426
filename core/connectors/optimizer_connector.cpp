#include <levin/core/connectors/optimizer_connector.h>

#include <levin/core/base/error.h>
#include <levin/core/base/gradient_groups.h>
#include <levin/core/base/log.h>
#include <levin/core/base/type_name.h>
#include <levin/core/connectors/error_context.h>
#include <levin/core/interfaces/independent_steps.h>
#include <levin/core/optim/fused_optimizer.h>
#include <levin/core/optim/group_options.h>
#include <levin/core/optim/named_optimizer.h>
#include <levin/core/optim/optimizer_state.h>
#include <levin/core/optim/schedulers.h>
#include <levin/core/options/metrics_due.h>
#include <levin/core/precision/precision.h>

#include <ATen/ops/_foreach_mul.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <typeinfo>

namespace levin {

OptimizerConnector::OptimizerConnector(const ResolvedOptions& options, TrainerState& state, Tracer& tracer,
                                       const DataConnector& data, LoggerConnector& logger)
    : options_(options),
      state_(state),
      tracer_(tracer),
      strategy_(*options.strategy),
      model_(strategy_.divided_model()),
      data_(data),
      logger_(logger),
      accumulation_(options.given.accumulate_grad_batches) {}

void OptimizerConnector::begin_fit() { accumulation_ = options_.given.accumulate_grad_batches; }

void OptimizerConnector::configure(const OptimizerHandle::Driver& driver) {
  handles_.clear();
  list_.clear();
  schedulers_.clear();
  base_rates_.clear();
  count_steps_elsewhere();
  Module& module = *state_.module;
  parameter_names_ = model_.parallel_model().parameter_names(module);
  made_configured_ = false;
  const OptimizerConfigs configs =
      call_user(state_, "configure_optimizers", module, [&] { return module.configure_optimizers(); });
  if (options_.optimizer != nullptr && !made_configured_)
    throw ConfigError(
        fmt::format("trainer.optimizer is '{}', and configure_optimizers of {} makes its own; hint: return "
                    "configured_optimizers() from it, or leave the option out",
                    options_.optimizer->init_name(), module.name()));
  check(configs);
  parameter_names_ = model_.parallel_model().parameter_names(module);  // the strategy may have divided the model anew
  if (const double scale = strategy_.learning_rate_scale(); scale != 1)
    for (const auto& config : configs)
      for (auto& group : config.optimizer->param_groups()) group.options().set_lr(group.options().get_lr() * scale);
  for (const auto& config : configs) add(config, driver);
}

OptimizerConfigs OptimizerConnector::configured() {
  if (options_.optimizer == nullptr)
    throw ConfigError(fmt::format(
        "{} does not override configure_optimizers() and no optimizer is configured; hint: override it, or give "
        "`optimizer: {{name: adamw, lr: 1e-3}}`",
        state_.module->name()));
  made_configured_ = true;
  return OptimizerConfig{.optimizer = options_.optimizer->make_for(*state_.module),
                         .scheduler = options_.given.scheduler};
}

void OptimizerConnector::check(const OptimizerConfigs& configs) const {
  if (configs.size() > 1 && state_.module->automatic_optimization)
    throw Error("module",
                fmt::format("configure_optimizers gave {} optimizers, which automatic optimization cannot step; "
                            "valid: one; hint: set automatic_optimization = false and step them in training_step",
                            configs.size()));
  if (configs.empty())
    log::rank_zero_warning("configure_optimizers gave no optimizer: training_step runs, but no parameter changes");
  const optim::ParameterNames module_names(*state_.module);
  for (const auto& config : configs)
    if (config.optimizer == nullptr) throw Error("module", "configure_optimizers gave an empty optimizer");
  for (const auto& config : configs) {
    for (const auto& group : config.optimizer->param_groups())
      for (const auto& parameter : group.params()) module_names.require(parameter);
    model_.check_optimizer(*config.optimizer);
  }
}

void OptimizerConnector::add(const OptimizerConfig& config, const OptimizerHandle::Driver& driver) {
  const auto local_shard = [this](const at::Tensor& parameter) {
    return model_.parallel_model().local_shard(parameter);
  };
  handles_.push_back(std::make_unique<OptimizerHandle>(config.optimizer, std::ssize(handles_), driver, local_shard));
  OptimizerHandle& handle = *handles_.back();
  list_.push_back(&handle);
  if (handle.needs_closure() && options_.precision->scales_loss())
    throw ConfigError(fmt::format(
        "trainer.precision '{}' scales the loss, which an optimizer that evaluates the loss itself (LBFGS, SAM) "
        "cannot follow; valid: 32-true, 64-true, bf16-mixed",
        options_.precision->name()));
  if (handle.needs_closure() && !accumulation_.is_off())
    throw ConfigError(
        "trainer.accumulate_grad_batches does not work with an optimizer that evaluates the loss itself "
        "(LBFGS, SAM); hint: leave it at 1");
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
    handle.add_scheduler(*scheduler);
    schedulers_.push_back({std::move(scheduler), scheduler_config, base_rates_.size() - 1});
  }
}

void OptimizerConnector::broadcast() {
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers;
  for (const OptimizerHandle* handle : list_) optimizers.push_back(handle->shared_optimizer());
  strategy_.broadcast_optimizers(optimizers);
}

// ---- State

State OptimizerConnector::state_dict() const {
  State optimizers = State::list();
  for (const OptimizerHandle* handle : list_)
    optimizers.push_back(
        model_.place_optimizer_state(optim::optimizer_state_dict(handle->optimizer(), parameter_names_)));
  return optimizers;
}

State OptimizerConnector::schedulers_state_dict() const {
  State schedulers = State::list();
  for (const auto& scheduled : schedulers_) schedulers.push_back(scheduled.scheduler->state_dict());
  return schedulers;
}

void OptimizerConnector::load_state_dict(const State& optimizers, const State& schedulers) {
  const auto& of_optimizers = optimizers.as_list();
  const auto& of_schedulers = schedulers.as_list();
  if (of_optimizers.size() != list_.size() || of_schedulers.size() != schedulers_.size())
    throw Error("checkpoint",
                fmt::format("the checkpoint has {} optimizers and {} schedulers; valid: {} and {} as "
                            "configure_optimizers gives; hint: load only the weights with load_from_checkpoint",
                            of_optimizers.size(), of_schedulers.size(), list_.size(), schedulers_.size()));
  for (size_t i = 0; i < list_.size(); ++i)
    optim::load_optimizer_state_dict(list_[i]->optimizer(), parameter_names_,
                                     model_.own_optimizer_state(of_optimizers[i]));
  for (size_t i = 0; i < schedulers_.size(); ++i) schedulers_[i].scheduler->load_state_dict(of_schedulers[i]);
}

State OptimizerConnector::followed_metrics_state() const {
  State all = State::list();
  for (const auto& scheduled : schedulers_) {
    State state = State::map();
    state["waits"] = scheduled.waits;
    state["seen_batch"] = scheduled.seen_moment;
    all.push_back(std::move(state));
  }
  return all;
}

void OptimizerConnector::load_followed_metrics(const State& state) {
  const auto& all = state.as_list();
  for (size_t i = 0; i < std::min(all.size(), schedulers_.size()); ++i) {
    schedulers_[i].waits = all[i].at("waits").as_bool();
    schedulers_[i].seen_moment = all[i].at("seen_batch").as_int();
  }
}

State OptimizerConnector::awaited_steps_state() const {
  State all = State::list();
  for (const OptimizerHandle* handle : list_) all.push_back(handle->awaits_step());
  return all;
}

void OptimizerConnector::load_awaited_steps(const State& state) {
  const auto& all = state.as_list();
  for (size_t i = 0; i < std::min(all.size(), list_.size()); ++i) {
    OptimizerHandle::Flags flags = list_[i]->flags();
    flags.awaits_step = all[i].as_bool();
    list_[i]->set_flags(flags);
  }
}

// ---- Accumulation and length

/// Whole-run schedules end where the run does, also where it had batches of another size before.
void OptimizerConnector::count_steps_elsewhere() {
  FitProgress& progress = state_.progress;
  const auto& whole = data_.whole_epoch_batches();
  if (!std::exchange(progress.has_other_batches, false) || !whole) return;
  const bool is_done = progress.phase == FitPhase::kEpochDone || progress.last_batch_done;
  int64_t as_now = accumulation_.steps(progress.epoch + (is_done ? 1 : 0), *whole);
  // The epoch under way may have fewer batches than others.
  if (!is_done)
    as_now += (progress.batch + *whole - data_.train_batches().value_or(*whole)) / accumulation_.at(progress.epoch);
  progress.step_offset = progress.global_step - as_now;
}

std::optional<int64_t> OptimizerConnector::estimated_steps() const {
  std::optional<int64_t> steps = options_.max_steps;
  if (options_.max_epochs && data_.whole_epoch_batches()) {
    const int64_t by_epochs =
        accumulation_.steps(*options_.max_epochs, *data_.whole_epoch_batches()) + state_.progress.step_offset;
    steps = steps ? std::min(*steps, by_epochs) : by_epochs;
  }
  return steps;
}

int64_t OptimizerConnector::planned_steps(const SchedulerConfig& config) const {
  const std::optional<int64_t> steps = estimated_steps();
  if (config.interval == Interval::kStep) return steps ? *steps / config.frequency : -1;
  std::optional<int64_t> epochs = options_.max_epochs;
  const auto& batches = data_.whole_epoch_batches();
  if (steps && batches && *batches > 0) {
    const int64_t by_steps = accumulation_.epochs(std::max<int64_t>(0, *steps - state_.progress.step_offset), *batches);
    epochs = epochs ? std::min(*epochs, by_steps) : by_steps;
  }
  return epochs ? *epochs / config.frequency : -1;
}

// ---- Learning rates

double OptimizerConnector::learning_rate() const {
  return base_rates_.front().front() / strategy_.learning_rate_scale();
}

void OptimizerConnector::set_learning_rate(double rate) {
  const double first = rate * strategy_.learning_rate_scale();
  for (size_t i = 0; i < base_rates_.size(); ++i) {
    auto& groups = list_[i]->optimizer().param_groups();
    for (size_t group = 0; group < base_rates_[i].size(); ++group)
      groups[group].options().set_lr(first * (base_rates_[i][group] / base_rates_.front().front()));
  }
}

void OptimizerConnector::restart_schedules(std::optional<double> rate) {
  if (rate) set_learning_rate(*rate);
  for (size_t i = 0; i < base_rates_.size(); ++i) {
    torch::optim::Optimizer& optimizer = list_[i]->optimizer();
    if (rate) base_rates_[i] = optim::learning_rates(optimizer);
    for (size_t group = 0; group < base_rates_[i].size(); ++group)
      optimizer.param_groups()[group].options().set_lr(base_rates_[i][group]);
  }
  for (auto& scheduled : schedulers_) {
    scheduled.scheduler->set_estimated_total(planned_steps(scheduled.config));
    scheduled.scheduler->attach(list_[scheduled.optimizer]->optimizer(), base_rates_[scheduled.optimizer]);
  }
}

void OptimizerConnector::require_metrics() const {
  // The validation that an epoch ends with, and steps that log, may have been cut off in this epoch or before.
  const int64_t epochs = state_.progress.epoch + 1;
  if (state_.progress.cut_short) return;
  if (data_.validates() &&
      (!validates_in(options_.given, epochs) || !all_metrics_due(options_.given, state_.progress.validated, epochs)))
    return;
  for (const auto& scheduled : schedulers_) {
    if (!scheduled.waits || scheduled.seen_moment >= 0) continue;
    if (scheduled.config.strict) throw Error("scheduler", never_logged(scheduled.config));
    log::rank_zero_warning_once(never_logged(scheduled.config));
  }
}

std::string OptimizerConnector::never_logged(const SchedulerConfig& config) const {
  std::vector<std::string> names;
  for (const auto& [name, value] : logger_.callback_metrics()) names.push_back(name);
  return fmt::format("the scheduler's monitor '{}' was never logged{}", config.monitor,
                     valid_names_hint(config.monitor, names));
}

void OptimizerConnector::warn_of_unfollowed_metrics() const {
  for (const auto& scheduled : schedulers_)
    if (scheduled.waits && scheduled.seen_moment < 0 && !logger_.moment_of_metric(scheduled.config.monitor))
      log::rank_zero_warning(never_logged(scheduled.config));
}

std::optional<double> OptimizerConnector::new_value(ScheduledRate& scheduled) {
  const std::string& monitor = scheduled.config.monitor;
  const bool of_one_rank = strategy_.world_size() == 1;
  if (of_one_rank && !logger_.has_newer_metric(monitor, scheduled.seen_moment)) return std::nullopt;
  logger_.combine_step_metrics();
  const MetricMap& known = logger_.callback_metrics();
  std::array<double, 2> newest{0, -1};
  if (const auto found = known.find(monitor); found != known.end())
    newest = {found->second, static_cast<double>(logger_.moment_of_metric(monitor).value_or(-1))};
  if (!of_one_rank) {
    // Ranks that followed values of their own would train with different rates.
    std::string bytes(sizeof newest, '\0');
    std::memcpy(bytes.data(), newest.data(), sizeof newest);
    bytes = strategy_.broadcast(bytes);
    std::memcpy(newest.data(), bytes.data(), sizeof newest);
  }
  const auto [value, batch] = newest;
  if (batch <= static_cast<double>(scheduled.seen_moment)) return std::nullopt;
  scheduled.seen_moment = static_cast<int64_t>(batch);
  return value;
}

template <class Visit>
void OptimizerConnector::visit_schedulers(Interval interval, bool of_metrics, const Visit& visit) {
  if (!state_.module->automatic_optimization || schedulers_.empty()) return;
  const ProfilerSpan span(tracer_.profiler(), "scheduler_step");
  for (auto& scheduled : schedulers_)
    if (scheduled.config.interval == interval && scheduled.scheduler->needs_metric() == of_metrics) visit(scheduled);
}

void OptimizerConnector::step(ScheduledRate& scheduled, std::optional<double> metric) {
  Module& module = *state_.module;
  call_user(state_, "lr_scheduler_step", module, [&] { module.lr_scheduler_step(*scheduled.scheduler, metric); });
}

bool OptimizerConnector::is_due(const ScheduledRate& scheduled) const {
  const FitProgress& progress = state_.progress;
  const int64_t count = scheduled.config.interval == Interval::kStep ? progress.global_step : progress.epoch + 1;
  return count % scheduled.config.frequency == 0;
}

void OptimizerConnector::step_schedulers(Interval interval) {
  visit_schedulers(interval, /*of_metrics=*/false, [this](ScheduledRate& scheduled) {
    if (is_due(scheduled)) step(scheduled, std::nullopt);
  });
  expect_metrics(interval);
}

void OptimizerConnector::expect_metrics(Interval interval) {
  visit_schedulers(interval, /*of_metrics=*/true,
                   [this](ScheduledRate& scheduled) { scheduled.waits = scheduled.waits || is_due(scheduled); });
}

void OptimizerConnector::follow_metrics(Interval interval) {
  visit_schedulers(interval, /*of_metrics=*/true, [this](ScheduledRate& scheduled) {
    if (!scheduled.waits) return;
    const std::optional<double> metric = new_value(scheduled);
    if (!metric) return;
    scheduled.waits = false;
    step(scheduled, metric);
  });
}

void OptimizerConnector::replace_schedulers(std::shared_ptr<optim::Scheduler> scheduler, Interval interval) {
  if (list_.size() != 1)
    throw Error("trainer", fmt::format("replace_schedulers works with one optimizer; got {}", list_.size()));
  OptimizerHandle& optimizer = *list_.front();
  scheduler->attach(optimizer.optimizer());
  optimizer.clear_schedulers();
  optimizer.add_scheduler(*scheduler);
  schedulers_.clear();
  schedulers_.push_back({.scheduler = std::move(scheduler), .config = {.interval = interval}});
}

std::vector<std::pair<std::string, double>> OptimizerConnector::learning_rates() const {
  std::vector<std::pair<std::string, double>> rates;
  std::map<std::string, int64_t> of_type;
  for (const OptimizerHandle* handle : list_) {
    const torch::optim::Optimizer& optimizer = handle->optimizer();
    std::string type = detail::demangled(typeid(optimizer).name());
    type = type.substr(type.rfind(':') + 1);
    const int64_t same = of_type[type]++;
    const std::string name = same == 0 ? "lr-" + type : fmt::format("lr-{}-{}", type, same);
    const auto& groups = optimizer.param_groups();
    for (size_t group = 0; group < groups.size(); ++group)
      rates.emplace_back(groups.size() == 1 ? name : fmt::format("{}/pg{}", name, group + 1),
                         handle->learning_rate(group));
  }
  return rates;
}

// ---- Gradients

void OptimizerConnector::require_taken_gradients(const OptimizerHandle& optimizer) const {
  const auto* fused = dynamic_cast<const optim::FusedOptimizer*>(&optimizer.optimizer());
  if (fused == nullptr) return;  // whose own step says what it takes
  const auto& groups = fused->param_groups();
  for (size_t group = 0; group < groups.size(); ++group)
    for (const at::Tensor& parameter : groups[group].params()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      const bool is_sparse = gradient.is_sparse();
      const optim::GradientLayouts taken = fused->gradient_layouts(group);
      if (taken != (is_sparse ? optim::GradientLayouts::kDense : optim::GradientLayouts::kSparse)) continue;
      const std::string* name = parameter_names_.find(parameter.unsafeGetTensorImpl());
      throw Error("optim",
                  fmt::format("the gradient of '{}' is {}, which its optimizer does not take with its options; "
                              "valid: {}",
                              name == nullptr ? "a parameter without a name" : *name, is_sparse ? "sparse" : "dense",
                              is_sparse ? optim::kTakesSparseGradients
                                        : "sparse gradients, of an Embedding with `sparse`; hint: give other "
                                          "parameters to another optimizer, such as adamw"));
    }
}

void OptimizerConnector::clip(OptimizerHandle& optimizer, double value, ClipAlgorithm algorithm, bool in_step) {
  model_.prepare_step();  // in 16 bits what is small would be lost
  options_.precision->unscale(optimizer.optimizer());
  const auto& parameters = optimizer.parameters();
  switch (algorithm) {
    case ClipAlgorithm::kValue:
      return optim::clip_by_value(parameters, value);
    case ClipAlgorithm::kAdaptive:
      return model_.parallel_model().clip_adaptively(parameters, value);
    case ClipAlgorithm::kNorm:
      break;
  }
  const at::Tensor norm = model_.parallel_model().gradient_norm(parameters);
  if (!norm.defined()) return;
  // The division is always done, also by 1, so that nothing waits for the norm.
  const at::Tensor divisor = optim::clip_divisor(norm, value);
  if (!in_step || !optimizer.divides_in_step() || find_independent_steps(strategy_) != nullptr)
    optim::divide_gradients(parameters, divisor);
  else
    optimizer.divide_in_step(divisor);
}

void OptimizerConnector::scale_gradients(const at::Tensor& factor) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : parameter_names_.items()) {
    at::Tensor gradient = gradient_values(parameter);
    if (!gradient.defined()) continue;
    if (factor.device().is_cpu() || factor.device() == gradient.device())
      gradients.push_back(std::move(gradient));
    else
      gradient.mul_(factor.to(gradient.device()));
  }
  if (gradients.empty()) return;
  // Kernels for many tensors want a factor of a device to be of their type; float32 is exact enough for any narrower.
  const bool is_wide = factor.device().is_cpu() || gradients.front().scalar_type() == at::kDouble;
  at::_foreach_mul_(gradients, is_wide ? factor : factor.to(at::kFloat));
}

}  // namespace levin
