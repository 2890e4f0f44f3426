#include <levin/callbacks/learning_rate_monitor.h>

#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

namespace levin {

void LearningRateMonitorOptions::describe(Schema<LearningRateMonitorOptions>& schema) {
  schema
      .field(
          "logging_interval", &LearningRateMonitorOptions::logging_interval,
          "step: at every logging boundary; epoch: at the start of every epoch; null: both, at boundaries what changed")
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

void LearningRateMonitor::on_train_batch_start(Trainer& trainer, Module&, const Batch&, int64_t) {
  if (options_.logging_interval == "epoch") return;
  // Taken before the step: after it, schedulers have moved on to the next one's.
  const int64_t step = trainer.global_step() + 1;
  if (step % trainer.options().log_every_n_steps != 0) return;
  captured_step_ = step;
  captured_ = trainer.learning_rates();
}

void LearningRateMonitor::on_train_batch_end(Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
  if (captured_step_ < 0 || trainer.global_step() != captured_step_) return;
  captured_step_ = -1;
  if (options_.logging_interval || captured_ != logged_) log(trainer, captured_);
}

void LearningRateMonitor::log(Trainer& trainer, const Rates& rates) {
  logged_ = rates;
  if (!rates.empty()) trainer.log_metrics(MetricMap(rates.begin(), rates.end()));
}

}  // namespace levin
