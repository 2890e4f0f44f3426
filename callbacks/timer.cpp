#include <levin/callbacks/timer.h>

#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

#include <algorithm>

namespace levin {
namespace {

constexpr RunningStage kMeasured[] = {RunningStage::kTrain, RunningStage::kValidate, RunningStage::kTest,
                                      RunningStage::kPredict};

}  // namespace

void TimerOptions::describe(Schema<TimerOptions>& schema) {
  schema.field("duration", &TimerOptions::duration, "training time after which training ends; null: none")
      .require("a time as DD:HH:MM:SS", [](const std::string& text) { return parse_duration(text).has_value(); });
  schema.field("interval", &TimerOptions::interval, "when the time is checked").one_of({"step", "epoch"});
}

Timer::Timer(const Options& options) : options_(options) {
  if (options.interval != "step" && options.interval != "epoch")
    throw ConfigError(fmt::format("timer.interval must be one of step, epoch; got '{}'", options.interval));
  if (!options.duration) return;
  duration_ = parse_duration(*options.duration);
  if (!duration_)
    throw ConfigError(fmt::format("timer.duration must be a time as DD:HH:MM:SS; got '{}'", *options.duration));
}

std::string Timer::state_key() const { return fmt::format("timer(interval={})", options_.interval); }

double Timer::Stopwatch::elapsed() const {
  return seconds + (started ? std::chrono::duration<double>(Clock::now() - *started).count() : 0.0);
}

void Timer::Stopwatch::start() {
  stop();
  started = Clock::now();
}

void Timer::Stopwatch::stop() {
  seconds = elapsed();
  started.reset();
}

double Timer::time_elapsed(RunningStage stage) const { return watch(stage).elapsed(); }

std::optional<double> Timer::time_remaining() const {
  if (!duration_) return {};
  return std::max(0.0, static_cast<double>(duration_->count()) - time_elapsed());
}

void Timer::setup(Trainer&, Module&, Stage stage) {
  // Every fit starts from nothing, or from the state that it resumes.
  if (stage == Stage::kFit) watches_ = {};
}

void Timer::on_train_start(Trainer& trainer, Module&) {
  watch(RunningStage::kTrain).start();
  check(trainer);
}

void Timer::on_train_batch_end(Trainer& trainer, Module&, const StepOutput&, const Batch&, int64_t) {
  if (options_.interval == "step") check(trainer);
}

void Timer::on_train_epoch_end(Trainer& trainer, Module&) { check(trainer); }

void Timer::on_train_end(Trainer&, Module&) { watch(RunningStage::kTrain).stop(); }

void Timer::on_validation_start(Trainer& trainer, Module&) {
  if (!trainer.sanity_checking()) watch(RunningStage::kValidate).start();
}

void Timer::on_validation_end(Trainer&, Module&) { watch(RunningStage::kValidate).stop(); }
void Timer::on_test_start(Trainer&, Module&) { watch(RunningStage::kTest).start(); }
void Timer::on_test_end(Trainer&, Module&) { watch(RunningStage::kTest).stop(); }
void Timer::on_predict_start(Trainer&, Module&) { watch(RunningStage::kPredict).start(); }
void Timer::on_predict_end(Trainer&, Module&) { watch(RunningStage::kPredict).stop(); }

void Timer::on_exception(Trainer&, Module&, const std::exception_ptr&) {
  for (auto& watch : watches_) watch.stop();
}

/// Rank 0's clock counts for all; the trainer carries its request to the others.
void Timer::check(Trainer& trainer) {
  if (!duration_ || !trainer.is_global_zero() || trainer.stop_requested()) return;
  if (time_elapsed() < static_cast<double>(duration_->count())) return;
  trainer.request_stop(fmt::format("timer: the duration {} is over", *options_.duration));
}

State Timer::state_dict() const {
  State elapsed = State::map();
  for (const auto stage : kMeasured) elapsed[to_string(stage)] = time_elapsed(stage);
  State state = State::map();
  state["time_elapsed"] = std::move(elapsed);
  return state;
}

void Timer::load_state_dict(const State& state) {
  const State& elapsed = state.at("time_elapsed");
  for (const auto stage : kMeasured) watch(stage) = {.seconds = elapsed.at(to_string(stage)).as_double()};
}

}  // namespace levin
