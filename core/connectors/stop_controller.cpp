#include <levin/core/connectors/stop_controller.h>

#include <levin/core/base/signals.h>
#include <levin/core/comm/control_plane.h>
#include <levin/core/interfaces/strategy.h>

#include <fmt/format.h>

#include <atomic>
#include <cstring>

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kSignalReason = "a signal";
constexpr const char* kTimeReason = "max_time is over";

}  // namespace

StopController::StopController(const ResolvedOptions& options, TrainerState& state, Tracer& tracer)
    : options_(options), state_(state), tracer_(tracer), strategy_(*options.strategy) {}

void StopController::begin_call() {
  agreed_ = false;
  wish_.clear();
  reasons_.clear();
  forgets_reasons_ = false;
}

void StopController::start_clock() { started_ = Clock::now(); }

double StopController::elapsed_seconds() const {
  if (state_.running == RunningStage::kIdle || state_.stage != Stage::kFit) return state_.progress.elapsed;
  return elapsed_before_ + std::chrono::duration<double>(Clock::now() - started_).count();
}

void StopController::start_batches() {
  interrupted_ = time_is_up_ = signal_passed_on_ = false;
  if (std::exchange(forgets_reasons_, false)) reasons_.clear();
}

void StopController::request(const std::string& reason) {
  if (strategy_.world_size() == 1) {
    agreed_ = true;
    reason_ = reason;
  } else {
    wish_ = reason;
  }
  if (ControlPlane* control = strategy_.control_plane()) control->request_stop(reason);
}

void StopController::set_reason(const Callback& who, const std::string& reason) {
  std::erase_if(reasons_, [&](const auto& item) { return item.first == &who; });
  if (!reason.empty()) reasons_.emplace_back(&who, reason);
}

std::string StopController::waiting_request() const {
  std::string request = agreed_ ? reason_ : wish_;
  if (strategy_.world_size() > 1)
    for (const std::string& of_rank : strategy_.collective().gather_bytes(request))
      if (request.empty()) request = of_rank;
  return has_met_reasons() || request == kTimeReason ? "" : request;
}

void StopController::restore_requests(const std::string& waiting_request, bool has_met_reasons) {
  forgets_reasons_ = has_met_reasons;
  if (waiting_request.empty()) return;
  agreed_ = true;
  reason_ = waiting_request;
}

bool StopController::signal_received() { return SignalScope::received() != 0; }

bool StopController::ends_alone() const { return signal_received() && strategy_.world_size() == 1; }

bool StopController::any_rank_signalled() const {
  const bool here = signal_received();
  if (strategy_.world_size() == 1) return here;
  for (const std::string& there : strategy_.collective().gather_bytes(here ? "y" : ""))
    if (!there.empty()) return true;
  return false;
}

bool StopController::stops_before_batch(bool may_stop) {
  const int64_t batch = state_.progress.total_batches;
  tracer_.rank_status().batch.store(batch, std::memory_order_relaxed);
  ControlPlane* control = strategy_.control_plane();
  if (control == nullptr) return false;
  const auto& max_time = options_.max_time;
  if (signal_received() && !signal_passed_on_) {
    signal_passed_on_ = true;
    control->request_stop(kSignalReason);
  } else if (max_time && strategy_.is_global_zero() && !time_is_up_ &&
             elapsed_seconds() >= static_cast<double>(max_time->count())) {
    time_is_up_ = true;
    control->request_stop(kTimeReason);
  }
  if (!may_stop) return false;
  const ProfilerSpan span(tracer_.profiler(), "agree_on_batch");
  if (!control->begin_batch(batch)) return false;
  const std::string reason = control->stop_reason();
  if (reason == kSignalReason) {
    interrupt();
    return true;
  }
  agreed_ = true;
  reason_ = reason;
  return should_end();
}

bool StopController::limits_reached() const {
  if (options_.max_steps && state_.progress.global_step >= *options_.max_steps) return true;
  if (!options_.max_time || elapsed_seconds() < static_cast<double>(options_.max_time->count())) return false;
  // Clocks differ: of several ranks that of rank 0 decides, and they stop together.
  return strategy_.world_size() == 1;
}

bool StopController::should_end() const {
  return interrupted_ || limits_reached() || (wants_to_stop() && minimum_reached());
}

bool StopController::minimum_reached() const {
  const FitProgress& progress = state_.progress;
  return progress.epoch + (progress.phase == FitPhase::kEpochDone ? 1 : 0) >= options_.min_epochs &&
         progress.global_step >= options_.min_steps;
}

void StopController::agree() {
  if (strategy_.world_size() == 1) return;
  const ProfilerSpan span(tracer_.profiler(), "agree_on_stop");
  for (const std::string& wish : strategy_.collective().gather_bytes(wish_)) {
    if (wish.empty()) continue;
    agreed_ = true;
    reason_ = wish;
    return;
  }
}

std::string StopController::end_reason(bool has_batches) const {
  if (interrupted_) {
    const int signal = SignalScope::received();
    return signal == 0 ? "another rank was sent a signal" : fmt::format("a signal came ({})", strsignal(signal));
  }
  if (options_.given.fast_dev_run.batches() > 0) return "fast_dev_run is over";
  if (options_.max_steps && state_.progress.global_step >= *options_.max_steps)
    return fmt::format("max_steps {} is reached", *options_.max_steps);
  if (limits_reached()) return kTimeReason;
  if (ends_on_request()) return "training was asked to stop: " + (agreed_ ? reason_ : reasons_.front().second);
  if (!has_batches) return "limit_train_batches is 0";
  return fmt::format("max_epochs {} is reached", options_.max_epochs.value_or(0));
}

void StopController::restore(const Requests& requests, Clock::duration not_counted) {
  agreed_ = requests.agreed;
  reason_ = requests.reason;
  wish_ = requests.wish;
  reasons_ = requests.reasons;
  started_ += not_counted;
}

}  // namespace levin
