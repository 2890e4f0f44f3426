#include <levin/core/connectors/stop_controller.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/signals.h>
#include <levin/core/comm/control_plane.h>
#include <levin/core/interfaces/strategy.h>

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <string_view>

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;

/// Of a request; what follows is the signal's number and the rank. No reason of a user's begins like that.
constexpr std::string_view kSignalReason = "\x01signal ";
/// Likewise; what follows is the rank.
constexpr std::string_view kEndReason = "\x01end ";
/// Likewise; what follows is the reason.
constexpr std::string_view kPauseReason = "\x01pause ";
constexpr const char* kTimeReason = "max_time is over";

}  // namespace

StopController::StopController(const ResolvedOptions& options, TrainerState& state, Tracer& tracer)
    : options_(options), state_(state), tracer_(tracer), strategy_(*options.strategy) {}

void StopController::begin_call(bool heeds_signals) {
  heeds_signals_ = heeds_signals;
  agreed_ = false;
  wish_.clear();
  reasons_.clear();
  forgets_reasons_ = false;
  pending_is_taken_ = false;
  signalled_rank_ = -1;
  thread_ = std::this_thread::get_id();
}

void StopController::end_call(bool takes_requests) {
  thread_ = std::thread::id();
  if (takes_requests) pending_.clear();
}

void StopController::start_clock() { started_ = Clock::now(); }

double StopController::elapsed_seconds() const {
  if (state_.running == RunningStage::kIdle || state_.stage != Stage::kFit) return state_.progress.elapsed;
  return elapsed_before_ + std::chrono::duration<double>(Clock::now() - started_).count();
}

void StopController::start_batches() {
  interrupted_ = time_passed_on_ = signal_passed_on_ = false;
  time_is_up_ = is_too_long(elapsed_before_);  // all ranks go on from one time
  if (std::exchange(forgets_reasons_, false)) reasons_.clear();
  agree();
}

void StopController::request(const std::string& reason) {
  if (thread_ == std::this_thread::get_id())
    act_on(reason);
  else
    pending_.request(reason);
}

void StopController::request_pause(const std::string& reason) { request(std::string(kPauseReason) + reason); }

bool StopController::take_pending() {
  if (pending_is_taken_ || !pending_.is_requested()) return false;
  pending_is_taken_ = true;
  act_on(pending_.reason());
  return true;
}

void StopController::act_on(const std::string& reason) {
  if (strategy_.world_size() == 1) {
    agreed_ = true;
    reason_ = reason;
  } else {
    wish_ = reason;
  }
  // One that waits for the minimum is as good as another.
  if (ControlPlane* control = strategy_.control_plane(); control != nullptr && !agreed_) control->request_stop(reason);
}

void StopController::set_reason(const Callback& who, const std::string& reason) {
  std::erase_if(reasons_, [&](const auto& item) { return item.first == &who; });
  if (!reason.empty()) reasons_.emplace_back(&who, reason);
}

bool StopController::is_for_now(const std::string& reason) {
  return reason.starts_with(kPauseReason) || reason == kTimeReason || reason == kTokenReason;
}

StopController::Saved StopController::saved() const {
  std::string request = agreed_ ? reason_ : wish_;
  if (strategy_.world_size() > 1)
    for (const std::string& of_rank : strategy_.collective().gather_bytes(request))
      if (request.empty()) request = of_rank;
  if (!has_met_reasons()) return {.waiting = request};
  if (is_for_now(request)) request.clear();
  if (request.empty() && !reasons_.empty()) request = reasons_.front().second;
  return {.end = request};
}

void StopController::restore_requests(const Saved& saved, bool has_met_reasons) {
  forgets_reasons_ = has_met_reasons;
  const std::string& request = saved.end.empty() ? saved.waiting : saved.end;
  if (request.empty()) return;
  agreed_ = true;
  reason_ = request;
}

TrainerStatus StopController::status(bool is_fit) const {
  // A signal that came when training had ended by itself interrupted nothing: who starts it again would train on.
  const bool is_interrupted = is_fit ? interrupted_ || (agreed_ && reason_ == kTokenReason) : signal_received();
  return is_interrupted ? TrainerStatus::kInterrupted : TrainerStatus::kFinished;
}

int StopController::signal() const { return heeds_signals_ ? SignalScope::received() : 0; }

bool StopController::ends_alone() const { return signal_received() && strategy_.world_size() == 1; }

bool StopController::any_rank_signalled() {
  if (strategy_.world_size() == 1) return signal_received();
  const auto signals = strategy_.collective().gather_bytes(std::to_string(signal()));
  for (size_t rank = 0; rank < signals.size(); ++rank) {
    if (signals[rank] == "0") continue;
    take_over_signal(std::stoi(signals[rank]), static_cast<int64_t>(rank));
    return true;
  }
  return false;
}

void StopController::take_over_signal(int signal, int64_t rank) {
  if (signal_received()) return;
  signalled_rank_ = rank;
  SignalScope::adopt(signal);
  log::rank_zero_warning(fmt::format("rank {} was sent a signal ({}), which ends all ranks", rank, strsignal(signal)));
}

bool StopController::stops_before_batch(bool may_stop) {
  const int64_t batch = state_.progress.total_batches;
  tracer_.rank_status().batch.store(batch, std::memory_order_relaxed);
  ControlPlane* control = strategy_.control_plane();
  const bool is_asked = take_pending();
  if (control == nullptr) return is_asked && should_end();
  const ProfilerSpan span(tracer_.profiler(), "agree_on_batch");
  while (true) {
    pass_on(*control);
    if (!may_stop || !control->begin_batch(batch)) return false;
    take_over(control->stop_reason());
    if (should_end()) return true;
    // It waits for the minimum. Until then a signal may come, or the time be over, which do not wait.
    control->forget_stop();
    signal_passed_on_ = time_passed_on_ = false;
  }
}

void StopController::end_steps(bool is_announced) {
  ControlPlane* control = strategy_.control_plane();
  if (control == nullptr) return;
  int64_t batch = state_.progress.total_batches;
  if (is_announced) {
    strategy_.collective().barrier();  // one that takes the batch makes another call
    ++batch;
  }
  if (!control->end_batches(batch, fmt::format("{}{}", kEndReason, strategy_.rank())))
    throw_unequal_ends(strategy_.rank());
}

/// `rank` ends, others do not.
void StopController::throw_unequal_ends(int64_t rank) const {
  throw Error("engine",
              fmt::format("rank {} ends after batch {}, and other ranks take more; valid: as many steps on every rank; "
                          "hint: a rank without data asks for the end of all by request_stop, for which loops look by "
                          "stop_requested",
                          rank, state_.progress.total_batches));
}

/// Asks all ranks to stop where this one was sent a signal, or knows that the time is over.
void StopController::pass_on(ControlPlane& control) {
  if (signal_received() && !signal_passed_on_) {
    signal_passed_on_ = true;
    control.request_stop(fmt::format("{}{} {}", kSignalReason, SignalScope::received(), strategy_.rank()));
  } else if (strategy_.is_global_zero() && !time_passed_on_ && is_too_long(elapsed_seconds())) {
    time_passed_on_ = true;
    control.request_stop(kTimeReason);
  }
}

void StopController::take_over(const std::string& request) {
  if (request.starts_with(kSignalReason)) {
    const size_t space = request.find(' ', kSignalReason.size());
    take_over_signal(std::stoi(request.substr(kSignalReason.size())), std::stoll(request.substr(space)));
    interrupt();
  } else if (request.starts_with(kEndReason)) {
    throw_unequal_ends(std::stoll(request.substr(kEndReason.size())));
  } else if (request == kTimeReason) {
    time_is_up_ = true;
  } else {
    agreed_ = true;
    reason_ = request;
  }
}

bool StopController::limits_reached() const {
  if (options_.max_steps && state_.progress.global_step >= *options_.max_steps) return true;
  // Clocks differ: of several ranks that of rank 0 decides, and they stop together.
  if (strategy_.world_size() > 1) return time_is_up_;
  return is_too_long(elapsed_seconds());
}

bool StopController::is_too_long(double seconds) const {
  return options_.max_time && seconds >= static_cast<double>(options_.max_time->count());
}

bool StopController::has_ended() const {
  const bool is_asked_for = (agreed_ && !is_for_now(reason_)) || !reasons_.empty();
  return !interrupted_ && (limits_reached() || (is_asked_for && minimum_reached()));
}

bool StopController::should_end() const {
  return interrupted_ || limits_reached() || (wants_to_stop() && minimum_reached());
}

bool StopController::is_out_of_time() const { return agreed_ && reason_ == kTimeReason; }

bool StopController::minimum_reached() const {
  const FitProgress& progress = state_.progress;
  return progress.epoch + (progress.last_batch_done ? 1 : 0) >= options_.min_epochs &&
         progress.global_step >= options_.min_steps;
}

void StopController::agree() {
  take_pending();
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
    const char* const signal = strsignal(SignalScope::received());
    return signalled_rank_ >= 0 ? fmt::format("rank {} was sent a signal ({})", signalled_rank_, signal)
                                : fmt::format("a signal came ({})", signal);
  }
  if (options_.given.fast_dev_run.batches() > 0) return "fast_dev_run is over";
  if (options_.max_steps && state_.progress.global_step >= *options_.max_steps)
    return fmt::format("max_steps {} is reached", *options_.max_steps);
  if (limits_reached() || is_out_of_time()) return kTimeReason;
  if (ends_on_request()) {
    const std::string& reason = agreed_ ? reason_ : reasons_.front().second;
    return "training was asked to stop: " + reason.substr(reason.starts_with(kPauseReason) ? kPauseReason.size() : 0);
  }
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
