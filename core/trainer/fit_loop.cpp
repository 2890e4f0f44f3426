#include <levin/core/trainer/fit_loop.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/signals.h>
#include <levin/core/comm/control_plane.h>
#include <levin/core/devices/cpu_cores.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/trainer/stand_in.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kSignalReason = "a signal";

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

void FitLoop::count_batches() {
  const int64_t data_ranks = core_.data_ranks();
  const char* option = core_.resolved.overfit ? "overfit_batches" : "limit_train_batches";
  const int64_t batches = core_.resolved.limit_train.resolve(
      core_.loaders.train.num_batches(core_.train_shares(), core_.progress.first_example), option);
  core_.train_batches = batches < 0 ? std::nullopt : std::optional<int64_t>(batches);
  core_.progress.global_batch_size = core_.global_batch_size();
  validation_batches_ = limited_batches(core_.loaders.val, core_.resolved.limit_val,
                                        core_.resolved.overfit ? "overfit_batches" : "limit_val_batches", data_ranks);

  validate_every_.reset();
  const auto& interval = core_.options.val_check_interval.value();
  if (const auto* count = std::get_if<int64_t>(&interval)) {
    validate_every_ = *count;
    if (core_.options.check_val_every_n_epoch && core_.train_batches && *count > *core_.train_batches &&
        !core_.loaders.val.empty() && core_.options.fast_dev_run.batches() == 0)
      throw ConfigError(
          fmt::format("trainer.val_check_interval is {} batches, but an epoch has {}; valid: 1 to {}; hint: "
                      "check_val_every_n_epoch: null lets it count across epochs",
                      *count, *core_.train_batches, *core_.train_batches));
  } else if (const auto* fraction = std::get_if<double>(&interval); fraction != nullptr && *fraction < 1.0) {
    if (!core_.train_batches)
      throw ConfigError(
          fmt::format("trainer.val_check_interval is {}, a fraction of an epoch whose length is not known; "
                      "hint: give a number of batches",
                      *fraction));
    validate_every_ = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(*core_.train_batches) * *fraction));
  }
}

void FitLoop::sanity_check() {
  if (core_.loaders.val.empty() || core_.resolved.sanity_steps == 0 || core_.resumed) return;
  const RngStateGuard keep_random_state;
  std::vector<int64_t> batches = validation_batches_;
  if (core_.resolved.sanity_steps > 0)
    for (auto& count : batches)
      count = count < 0 ? core_.resolved.sanity_steps : std::min(count, core_.resolved.sanity_steps);
  if (std::all_of(batches.begin(), batches.end(), [](int64_t count) { return count == 0; })) return;
  core_.running = RunningStage::kSanityCheck;
  const ProfilerSpan span(core_.profiler, "sanity_check");
  hooks_.callbacks("on_sanity_check_start", &Callback::on_sanity_check_start);
  EvaluationProgress progress;
  evaluation_.run(RunningStage::kValidate, core_.loaders.val, batches, progress, /*in_fit=*/true);
  core_.forget_metrics();
  hooks_.callbacks("on_sanity_check_end", &Callback::on_sanity_check_end);
  core_.running = RunningStage::kTrain;
}

bool FitLoop::limits_reached() const {
  const ResolvedOptions& limits = core_.resolved;
  if (limits.max_steps && core_.progress.global_step >= *limits.max_steps) return true;
  if (!limits.max_time || core_.elapsed_seconds() < static_cast<double>(limits.max_time->count())) return false;
  if (core_.world_size() == 1) return true;
  // Clocks differ: rank 0's decides, and the ranks stop together.
  return false;
}

/// With several ranks: what one of them alone knows of (a signal, the time) becomes a request to all, and all stop
/// before the same batch.
bool FitLoop::stops_before_batch() {
  ControlPlane* control = core_.strategy().control_plane();
  if (control == nullptr) return false;
  const auto& max_time = core_.resolved.max_time;
  if (SignalScope::received() != 0 && !signal_passed_on_) {
    signal_passed_on_ = true;
    control->request_stop(kSignalReason);
  } else if (max_time && core_.is_global_zero() && !time_is_up_ &&
             core_.elapsed_seconds() >= static_cast<double>(max_time->count())) {
    time_is_up_ = true;
    control->request_stop("max_time is over");
  }
  core_.whereabouts.batch.store(core_.progress.total_batches, std::memory_order_relaxed);
  if (checkpoints_.waits_for_window()) return false;
  const ProfilerSpan span(core_.profiler, "agree_on_batch");
  if (!control->begin_batch(core_.progress.total_batches)) return false;
  const std::string reason = control->stop_reason();
  if (reason == kSignalReason) {
    end_by_signal();
    return true;
  }
  core_.stop_requested = true;
  core_.stop_reason = reason;
  return should_end();
}

bool FitLoop::should_end() const {
  if (interrupted_ || limits_reached()) return true;
  if (!core_.stop_requested) return false;
  return core_.progress.epoch + (core_.progress.phase == FitPhase::kEpochDone ? 1 : 0) >= core_.resolved.min_epochs &&
         core_.progress.global_step >= core_.resolved.min_steps;
}

std::string FitLoop::end_reason() const {
  const ResolvedOptions& limits = core_.resolved;
  if (interrupted_) {
    const int signal = SignalScope::received();
    return signal == 0 ? "another rank was sent a signal" : fmt::format("a signal came ({})", strsignal(signal));
  }
  if (core_.options.fast_dev_run.batches() > 0) return "fast_dev_run is over";
  if (limits.max_steps && core_.progress.global_step >= *limits.max_steps)
    return fmt::format("max_steps {} is reached", *limits.max_steps);
  if (limits_reached()) return "max_time is over";
  if (core_.stop_requested && should_end()) return "training was asked to stop: " + core_.stop_reason;
  if (core_.train_batches && *core_.train_batches == 0) return "limit_train_batches is 0";
  return fmt::format("max_epochs {} is reached", limits.max_epochs.value_or(0));
}

void FitLoop::run(const std::function<void()>& reload) {
  FitProgress& progress = core_.progress;
  last_validation_ = Clock::now() - std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(progress.seconds_since_validation));
  interrupted_ = time_is_up_ = signal_passed_on_ = false;
  report_.emplace(core_);
  unlogged_step_.clear();
  bool first = true;
  core_.in_fit_loop = true;
  while (!should_end()) {
    const bool epoch_done = progress.phase == FitPhase::kEpochDone;
    if (core_.resolved.max_epochs && progress.epoch + (epoch_done ? 1 : 0) >= *core_.resolved.max_epochs) break;
    if (epoch_done) {
      ++progress.epoch;
      progress.batch = 0;
      progress.epoch_samples = 0;
      if (std::exchange(progress.first_example, 0) > 0) count_batches();
      progress.epoch_started = false;
      progress.last_batch_done = false;
      progress.window_index = 0;
      progress.phase = FitPhase::kBatches;
    }
    if (core_.train_batches && *core_.train_batches == 0) break;
    const int64_t every = core_.options.reload_dataloaders_every_n_epochs;
    if (!first && every > 0 && progress.epoch % every == 0 && progress.batch == 0) {
      reload();
      count_batches();
    }
    first = false;
    run_epoch();
  }
  if (!interrupted_) {
    core_.add_to_row(unlogged_step_);
    core_.emit_row();
  }
  report_->say_end(end_reason());
  core_.in_fit_loop = false;
}

void FitLoop::run_epoch() {
  FitProgress& progress = core_.progress;
  const ProfilerSpan span(core_.profiler, "train_epoch");
  if (!progress.epoch_started) {
    core_.train_metrics.reset();
    core_.train_metrics.begin({});
    hooks_.call("on_train_epoch_start", &Callback::on_train_epoch_start, &Module::on_train_epoch_start);
    progress.epoch_started = true;
  }
  // A run resumed right after a batch, or inside a validation, first does what belongs to that batch.
  if (progress.phase == FitPhase::kValidation ||
      (progress.phase == FitPhase::kBatches && progress.batch > 0 && core_.resumed && validation_due())) {
    if (!validate()) return;
  }
  core_.resumed = false;
  const bool complete = progress.last_batch_done || train_batches();
  core_.drop_early_copies();
  if (!interrupted_) finish_epoch(complete);
}

/// Returns false when training ends inside the epoch.
bool FitLoop::train_batches() {
  FitProgress& progress = core_.progress;
  if (should_end()) return progress.last_batch_done;
  had_data_ = progress.batch > 0;
  auto pass = [this] {
    const Activity activity(core_, "start_train_loader");
    return core_.loaders.train.pass(core_.train_position());
  }();
  const auto started = Clock::now();
  auto fetched = fetch(pass);
  if (!fetched && progress.batch == 0 && core_.world_size() == 1)
    throw Error("data", fmt::format("the training loader gave no batch in epoch {}; hint: is the data set empty?",
                                    progress.epoch));
  // With several ranks the end is everybody's: a rank without data goes on until the others have none either.
  bool more = fetched.has_value() ||
              (core_.world_size() > 1 && (!core_.train_batches || progress.batch < *core_.train_batches));
  while (more) {
    if (stops_before_batch()) return false;
    if (core_.profiler != nullptr) core_.profiler->step();
    bool known_last = false;
    {
      const ProfilerSpan span(core_.profiler, "train_batch");
      Turn turn = next_turn(pass, fetched);
      known_last = turn.place.is_last;
      const BatchResult result = noting_errors(
          [&] { return train_batch(std::move(turn), fetched); },
          [this, batch_idx = turn.place.batch_idx](ErrorNotes& notes) { note_batch(notes, core_, batch_idx); });
      if (result == BatchResult::kEndOfEpoch) break;
    }
    if (interrupted_) return false;
    if (validation_due() && !validate()) return false;
    if (should_end() && !progress.last_batch_done) return false;
    progress.phase = FitPhase::kBatches;
    more = !known_last && !progress.last_batch_done;
  }
  progress.last_batch_done = true;
  suggest_workers(pass.waited(), Clock::now() - started);
  return true;
}

std::optional<Batch> FitLoop::fetch(DataLoader::Pass& pass) {
  const Activity activity(core_, "fetch_train_batch");
  const auto before = pass.waited();
  auto batch =
      noting_errors([&] { return pass.next(); }, [&](ErrorNotes& notes) { note_batch(notes, core_, pass.position()); });
  core_.data_wait += pass.waited() - before;
  return batch;
}

/// Takes the batch that was fetched, and fetches the one after it: one batch of lookahead tells whether this is the
/// last one.
FitLoop::Turn FitLoop::next_turn(DataLoader::Pass& pass, std::optional<Batch>& fetched) {
  const FitProgress& progress = core_.progress;
  Turn turn;
  turn.place.batch_idx = progress.batch;
  const bool limit_hit = core_.train_batches && progress.batch + 1 >= *core_.train_batches;
  std::optional<Batch> next;
  if (!limit_hit && fetched) next = fetch(pass);
  turn.has_data = fetched.has_value();
  had_data_ = had_data_ || turn.has_data;
  if (turn.has_data) {
    turn.batch = std::move(*fetched);
  } else {
    // Nothing is learnt from it: it stands in so that this rank reduces what the others reduce.
    turn.batch = stand_in_batch(core_, core_.loaders.train);
  }
  turn.samples = turn.batch.size();
  if (core_.data_ranks() == 1) {
    turn.place.is_last = !next.has_value();
  } else if (const auto share = pass.share(progress.batch); share && core_.train_shares() > 1) {
    // Known beforehand: the examples of the batch are weighted alike, whichever rank has them.
    turn.place.is_last = limit_hit;
    turn.place.weight = static_cast<double>(share->own * core_.train_shares()) / static_cast<double>(share->all);
    turn.samples = share->all;
  } else {
    turn.place.counts_participants = true;
    turn.place.has_next = next.has_value();
    turn.place.weight = turn.has_data ? 1.0 : 0.0;
    turn.place.is_last = limit_hit;
    turn.samples *= core_.data_ranks();
  }
  if (core_.train_batches && !turn.place.counts_participants)
    turn.place.remaining = *core_.train_batches - progress.batch - 1;
  fetched = std::move(next);
  return turn;
}

FitLoop::BatchResult FitLoop::train_batch(Turn turn, const std::optional<Batch>& next) {
  FitProgress& progress = core_.progress;
  const int64_t batch_idx = progress.batch;
  const int64_t steps_before = progress.global_step;
  const StandIn stand_in(core_, !turn.has_data);
  const Batch batch = core_.transfer(std::move(turn.batch), 0, next);
  core_.train_metrics.begin({.batch_size = batch.size(), .step_default = true});
  hooks_.callbacks("on_train_batch_start", &Callback::on_train_batch_start, batch, batch_idx);
  if (!hooks_.module("on_train_batch_start", &Module::on_train_batch_start, batch, batch_idx)) {
    optimization_.step_schedulers(Interval::kEpoch, /*plateau=*/false);
    return BatchResult::kEndOfEpoch;
  }
  const StepOutput& output = optimization_.run(batch, turn.place);
  const bool is_last = turn.place.is_last || optimization_.data_ended();

  if (optimization_.schedulers_are_due()) {
    optimization_.step_schedulers(Interval::kStep, /*plateau=*/false);
    optimization_.step_schedulers(Interval::kStep, /*plateau=*/true);
  }
  if (is_last) optimization_.step_schedulers(Interval::kEpoch, /*plateau=*/false);

  progress.phase = FitPhase::kBatches;
  hooks_.call_in_stages(
      "on_train_batch_end", &Callback::on_train_batch_end, &Module::on_train_batch_end, [] {},
      [&] {
        // In manual optimization a batch may take several steps.
        if (progress.global_step / core_.options.log_every_n_steps > steps_before / core_.options.log_every_n_steps)
          core_.log_step_row();
        else
          core_.emit_row();
        ++progress.batch;
        ++progress.total_batches;
        ++progress.batches_since_validation;
        progress.samples += turn.samples;
        progress.epoch_samples += turn.samples;
        progress.last_batch_done = is_last;
        progress.seconds_since_validation = seconds_between(last_validation_, Clock::now());
        checkpoints_.save_deferred();
      },
      output, batch, batch_idx);
  if (SignalScope::received() != 0 && core_.world_size() == 1) end_by_signal();
  return BatchResult::kContinue;
}

bool FitLoop::validation_due() const {
  const FitProgress& progress = core_.progress;
  if (core_.loaders.val.empty() || progress.phase == FitPhase::kAfterValidation) return false;
  if (std::all_of(validation_batches_.begin(), validation_batches_.end(), [](int64_t count) { return count == 0; }))
    return false;
  const auto& every_epochs = core_.options.check_val_every_n_epoch;
  if (every_epochs && (progress.epoch + 1) % *every_epochs != 0) return false;
  const auto& interval = core_.options.val_check_interval.value();
  if (const auto* time = std::get_if<std::chrono::seconds>(&interval)) {
    const bool due = progress.seconds_since_validation >= static_cast<double>(time->count());
    if (core_.world_size() == 1) return due;
    // Clocks differ: rank 0's decides, but ranks do not ask it in every step.
    return progress.total_batches % core_.options.log_every_n_steps == 0 && core_.from_rank_zero(due ? "y" : "") == "y";
  }
  // A callback that stops training wants to see how the weights do.
  if (core_.stop_requested && should_end()) return true;
  if (!validate_every_) return progress.last_batch_done;
  const int64_t batches = every_epochs ? progress.batch : progress.batches_since_validation;
  return batches % *validate_every_ == 0;
}

/// Returns false when a signal ended it.
bool FitLoop::validate() {
  const ProfilerSpan span(core_.profiler, "validation");
  FitProgress& progress = core_.progress;
  progress.phase = FitPhase::kValidation;
  if (!evaluation_.run(RunningStage::kValidate, core_.loaders.val, validation_batches_, progress.validation,
                       /*in_fit=*/true)) {
    if (core_.world_size() > 1) progress.phase = FitPhase::kBatches;  // it is due again
    end_by_signal();
    return false;
  }
  progress.phase = FitPhase::kAfterValidation;
  progress.batches_since_validation = 0;
  progress.seconds_since_validation = 0;
  last_validation_ = Clock::now();
  core_.agree_on_stop();
  if (SignalScope::received() != 0 && core_.world_size() == 1) {
    end_by_signal();
    return false;
  }
  return true;
}

/// `complete`: false when training ends inside the epoch, which a resumed run then goes on with.
void FitLoop::finish_epoch(bool complete) {
  if (core_.progress.batch > 0) unlogged_step_ = unlogged_step();
  core_.train_metrics.begin({.batch_size = 1, .step_default = false});
  core_.epoch_values_visible = true;
  const auto synchronize = [&] {
    if (core_.world_size() == 1) return;
    const ProfilerSpan span(core_.profiler, "synchronize_metrics");
    core_.train_metrics.synchronize_epoch(core_.strategy().collective(), had_data_ && core_.strategy().owns_outputs());
  };
  hooks_.call_in_stages("on_train_epoch_end", &Callback::on_train_epoch_end, &Module::on_train_epoch_end, synchronize,
                        [&] {
                          if (complete) optimization_.step_schedulers(Interval::kEpoch, /*plateau=*/true);
                          core_.log_epoch_row(core_.train_metrics);
                          if (complete) {
                            core_.progress.phase = FitPhase::kEpochDone;
                            core_.train_metrics.reset();
                          }
                          checkpoints_.save_deferred();
                        });
  core_.epoch_values_visible = false;
  if (complete) report_->check_epoch();
  core_.agree_on_stop();
}

/// What the last step logged, where it was no logging boundary; with several ranks a collective. Nothing else has its
/// values once the epoch has been summed up.
MetricMap FitLoop::unlogged_step() {
  MetricMap values;
  // A rank whose last batch was a stand-in has logged nothing.
  if (core_.world_size() > 1) core_.train_metrics.synchronize_step(core_.strategy().collective(), /*took_part=*/false);
  core_.train_metrics.visit_step([&](const metrics::Collector::Value& value) {
    if (value.logger) values[value.name] = value.value;
  });
  return values;
}

void FitLoop::end_by_signal() {
  interrupted_ = true;
  core_.exact_moment = true;
  for (Checkpointer* checkpointer : core_.checkpointers()) checkpointer->save_last(core_.trainer());
  core_.exact_moment = false;
}

void FitLoop::suggest_workers(std::chrono::nanoseconds waited, std::chrono::nanoseconds total) const {
  const int64_t workers = core_.loaders.train.options().num_workers;
  const double share =
      total.count() == 0 ? 0 : static_cast<double>(waited.count()) / static_cast<double>(total.count());
  if (share < 0.2 || total < std::chrono::seconds(2)) return;
  const auto cores = static_cast<int64_t>(CpuCores().usable());
  if (workers + 1 >= cores) return;
  log::rank_zero_info_once(
      fmt::format("{:.0f} % of the last epoch went by waiting for data; hint: num_workers = {} fetches batches "
                  "while the step computes (now {})",
                  100 * share, std::min(workers + 2, cores - 1), workers));
}

}  // namespace levin
