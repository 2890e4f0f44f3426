#include <levin/callbacks/early_stopping.h>

#include <levin/callbacks/monitor.h>
#include <levin/core/base/log.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

namespace levin {
namespace {

StoppingRule::Limits limits_of(const EarlyStoppingOptions& options) {
  return {.mode = parse_monitor_mode(options.mode, "early_stopping.mode"),
          .min_delta = options.min_delta,
          .patience = options.patience,
          .stopping_threshold = options.stopping_threshold,
          .divergence_threshold = options.divergence_threshold,
          .check_finite = options.check_finite};
}

}  // namespace

void EarlyStoppingOptions::describe(Schema<EarlyStoppingOptions>& schema) {
  using O = EarlyStoppingOptions;
  schema.field("monitor", &O::monitor, "metric to watch; required");
  schema.field("min_delta", &O::min_delta, "change that an improvement must exceed").at_least(0);
  schema.field("patience", &O::patience, "checks without improvement before training stops").at_least(1);
  schema.field("mode", &O::mode, "direction of improvement; min: smaller is better; max: larger")
      .one_of({"min", "max"});
  schema.field("stopping_threshold", &O::stopping_threshold, "value beyond which training ends as successful");
  schema.field("divergence_threshold", &O::divergence_threshold, "value beyond which training ends as diverged");
  schema.field("check_finite", &O::check_finite, "end training when the value is NaN or infinite");
  schema.field("check_on_train_epoch_end", &O::check_on_train_epoch_end,
               "true: at the epoch's end; false: after validation; null: validation once per epoch: at the epoch's "
               "end; otherwise after every validation");
  schema.field("verbose", &O::verbose, "print a line for every improvement");
  schema.field("strict", &O::strict, "make a metric that is not logged an error; false: a warning");
}

EarlyStopping::EarlyStopping(const Options& options)
    : options_(options), moment_(options.check_on_train_epoch_end), rule_(options.monitor, limits_of(options)) {
  if (options.monitor.empty())
    throw ConfigError("early_stopping.monitor is required; got none; hint: early_stopping: {monitor: val_loss}");
}

std::string EarlyStopping::state_key() const {
  return fmt::format("early_stopping(monitor={}, mode={})", options_.monitor, options_.mode);
}

void EarlyStopping::setup(Trainer&, Module&, Stage stage) {
  if (stage != Stage::kFit) return;
  rule_.restore(0, std::nullopt, std::nullopt);
  stopped_epoch_.reset();
  seen_moment_ = -1;
}

void EarlyStopping::on_train_start(Trainer& trainer, Module&) { ask(trainer); }

void EarlyStopping::on_train_batch_end(Trainer&, Module&, const StepOutput&, const Batch&, int64_t batch_idx) {
  moment_.count_batches(batch_idx + 1);
}

void EarlyStopping::on_validation_end(Trainer& trainer, Module&) {
  if (trainer.stage() != Stage::kFit || trainer.sanity_checking()) return;
  if (moment_.is_validation_end(trainer)) check(trainer, true);
}

void EarlyStopping::on_train_epoch_end(Trainer& trainer, Module&) {
  // A run that goes on in the middle of the epoch looks at all of it.
  if (!trainer.epoch_complete()) return;
  if (moment_.is_train_epoch_end(trainer)) check(trainer, moment_.all_metrics_due(trainer));
}

void EarlyStopping::on_train_end(Trainer& trainer, Module&) {
  if (seen_moment_ < 0 && !trainer.validates() && moment_.is_validation_end(trainer))
    log::rank_zero_warning(
        fmt::format("early_stopping: '{}' was never looked at, since there are no validation data; hint: "
                    "check_on_train_epoch_end: true",
                    options_.monitor));
}

void EarlyStopping::check(Trainer& trainer, bool metric_required) {
  if (trainer.options().fast_dev_run.batches() > 0) return;
  const auto& metrics = trainer.callback_metrics();
  const auto value = monitored_value(trainer, options_.monitor, metrics);
  if (!value) {
    const Error error = missing_metric_error("early_stopping", options_.monitor, metrics);
    if (metric_required && options_.strict) throw error;
    log::rank_zero_warning_once(error.what());
    return;
  }
  if (value->moment <= seen_moment_) return;
  seen_moment_ = value->moment;
  const auto former = rule_.best_score();
  if (rule_.observe(value->value) && options_.verbose && trainer.is_global_zero())
    log::rank_zero_info(fmt::format("{} improved{} to {:.6g}", options_.monitor,
                                    former ? fmt::format(" from {:.6g}", *former) : "", value->value));
  stopped_epoch_ = trainer.current_epoch();
  ask(trainer);
}

void EarlyStopping::ask(Trainer& trainer) {
  const std::string reason = rule_.stop_reason();
  trainer.set_stop_reason(*this, reason.empty() ? "" : "early_stopping: " + reason);
  if (reason.empty()) stopped_epoch_.reset();
}

State EarlyStopping::state_dict() const {
  State state = State::map();
  state["wait_count"] = rule_.wait_count();
  state["best_score"] = rule_.best_score() ? State(*rule_.best_score()) : State();
  state["stopped_epoch"] = stopped_epoch_ ? State(*stopped_epoch_) : State();
  state["last_score"] = rule_.last_score() ? State(*rule_.last_score()) : State();
  state["seen_batch"] = seen_moment_;
  return state;
}

void EarlyStopping::load_state_dict(const State& state) {
  const auto number = [&](const char* key) {
    const State& value = state.at(key);
    return value.is_null() ? std::nullopt : std::optional(value.as_double());
  };
  const State& stopped = state.at("stopped_epoch");
  rule_.restore(state.at("wait_count").as_int(), number("best_score"), number("last_score"));
  stopped_epoch_ = stopped.is_null() ? std::nullopt : std::optional(stopped.as_int());
  seen_moment_ = state.at("seen_batch").as_int();
}

}  // namespace levin
