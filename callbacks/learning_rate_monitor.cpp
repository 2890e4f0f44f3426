#include <levin/callbacks/learning_rate_monitor.h>

#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

namespace levin {

void LearningRateMonitorOptions::describe(Schema<LearningRateMonitorOptions>& schema) {
  schema
      .field(
          "logging_interval", &LearningRateMonitorOptions::logging_interval,
          "step: at every logging boundary; epoch: at the start of every epoch; null: both, at boundaries only changes")
      .one_of({"step", "epoch"});
}

LearningRateMonitor::LearningRateMonitor(const Options& options) : options_(options) {
  const auto& interval = options.logging_interval;
  if (interval && *interval != "step" && *interval != "epoch")
    throw ConfigError(
        fmt::format("learning_rate_monitor.logging_interval must be one of step, epoch; got '{}'", *interval));
}

void LearningRateMonitor::on_train_epoch_start(Trainer& trainer, Module&) {
  if (options_.logging_interval != "step") log(trainer, trainer.learning_rates());
}

void LearningRateMonitor::on_train_batch_start(Trainer& trainer, Module& module, const Batch&, int64_t) {
  if (options_.logging_interval == "epoch") return;
  // Taken before the step: after it, schedulers have moved on to the next one's. In manual optimization nobody knows
  // how many steps a batch will take.
  steps_before_ = trainer.global_step();
  is_captured_ = !module.automatic_optimization || (steps_before_ + 1) % trainer.options().log_every_n_steps == 0;
  if (is_captured_) captured_ = trainer.learning_rates();
}

void LearningRateMonitor::on_train_batch_end(Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
  const int64_t every = trainer.options().log_every_n_steps;
  if (!is_captured_ || trainer.global_step() / every == steps_before_ / every) return;
  if (options_.logging_interval || captured_ != logged_) log(trainer, captured_);
}

State LearningRateMonitor::state_dict() const {
  State logged = State::list();
  for (const auto& [name, rate] : logged_) logged.push_back(State::List{name, rate});
  State state = State::map();
  state["logged"] = std::move(logged);
  return state;
}

void LearningRateMonitor::load_state_dict(const State& state) {
  logged_.clear();
  for (const State& rate : state.at("logged").as_list())
    logged_.emplace_back(rate.as_list().at(0).as_string(), rate.as_list().at(1).as_double());
}

void LearningRateMonitor::log(Trainer& trainer, const Rates& rates) {
  logged_ = rates;
  if (!rates.empty()) trainer.log_metrics(MetricMap(rates.begin(), rates.end()));
}

}  // namespace levin
