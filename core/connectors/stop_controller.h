#pragma once

#include <levin/core/connectors/pending_stop.h>
#include <levin/core/connectors/tracer.h>
#include <levin/core/connectors/trainer_state.h>
#include <levin/core/options/resolved_options.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace levin {

class Callback;

/// Decides when training stops: at its limits, on a signal, or because a callback or the module asked for it. What one
/// rank alone knows becomes a wish, and all ranks stop before the same batch, or at the end of the same validation or
/// epoch.
class StopController {
 public:
  StopController(const ResolvedOptions& options, TrainerState& state, Tracer& tracer);

  // ---- A call.

  /// Called on the thread that runs the call. `heeds_signals` false: they are the program's, and end nothing here.
  void begin_call(bool heeds_signals = true);
  /// Called on the thread that goes on with the call under way, if there is one.
  void continue_here() {
    if (thread_.load() != std::thread::id()) thread_ = std::this_thread::get_id();
  }
  /// Called in the process that made the call, once all ranks have ended. `takes_requests`: those made elsewhere were
  /// for this call; otherwise they wait for the next fit.
  void end_call(bool takes_requests);
  void begin_fit() { elapsed_before_ = 0; }
  void start_clock();
  /// Sets the clock to a checkpoint's time.
  void continue_clock() { elapsed_before_ = state_.progress.elapsed; }
  /// Training time in seconds, that of the runs it resumes included.
  double elapsed_seconds() const;
  /// Notes that the batches begin: no signal has ended them yet. A collective, which agrees on earlier requests.
  void start_batches();

  // ---- Requests.

  /// Asks for the end of training after the batch under way, no sooner than min_epochs and min_steps allow; while no
  /// call is under way, of the next fit. On any rank, and in the process whose forks are the ranks. Thread-safe.
  void request(const std::string& reason);
  /// The same for a run that is to go on later.
  void request_pause(const std::string& reason);
  /// Sets the token whose stop request every fit takes for one of its own.
  void set_token(std::stop_token token) { token_ = std::move(token); }
  /// Requests the stop that the token asks for, or has asked for already, as long as what is returned lives. `is_fit`:
  /// of a call of fit; others have no stop.
  auto follow_token(bool is_fit) {
    struct Request {
      StopController& stop;
      void operator()() const { stop.request(kTokenReason); }
    };
    return std::stop_callback<Request>(is_fit ? token_ : std::stop_token(), Request{*this});
  }
  /// The status of a call that has ended in good order: kInterrupted where a signal or the token ended it. `is_fit`: of
  /// a call of fit.
  TrainerStatus status(bool is_fit) const;
  /// Why all ranks were asked to stop; empty where they were not, or for a reason that may pass.
  std::string reason() const { return agreed_ ? reason_ : ""; }
  /// Takes over what ranks in other processes were asked for.
  void adopt(const std::string& reason) {
    agreed_ = !reason.empty();
    reason_ = reason;
  }
  /// Sets why a callback asks for the same at present; empty: it does not. All ranks do so at the same place.
  void set_reason(const Callback& who, const std::string& reason);
  /// Whether this rank or all of them want to stop. A reason that may pass counts once min_epochs and min_steps are
  /// reached.
  bool is_requested() const {
    const bool is_idle = thread_ == std::thread::id();
    return agreed_ || !wish_.empty() || (!reasons_.empty() && minimum_reached()) ||
           (is_idle && pending_.is_requested());
  }
  /// What a checkpoint keeps of the requests; empty: nothing.
  struct Saved {
    std::string waiting;  ///< min_epochs and min_steps do not allow it yet, or a signal came first
    std::string end;      ///< it ends the run here, and is no pause
  };
  /// A collective where there are several ranks.
  Saved saved() const;
  /// Whether min_epochs and min_steps allow what was asked for, and no signal ended training first. A checkpoint saved
  /// here is one of a run that ends: the run that goes on from it starts without these requests and reasons.
  bool has_met_reasons() const { return minimum_reached() && !interrupted_; }
  void restore_requests(const Saved& saved, bool has_met_reasons);
  /// Notes that a signal has come that ends training here.
  void interrupt() { interrupted_ = true; }
  bool is_interrupted() const { return interrupted_; }
  /// Whether a signal has come to this rank's process that the call heeds.
  bool signal_received() const { return signal() != 0; }
  /// Whether a signal has come that this rank, alone in its job, acts on.
  bool ends_alone() const;
  /// Whether a signal has come to any rank, whose signal is then this process's too; a collective where there are
  /// several.
  bool any_rank_signalled();

  // ---- Decisions.

  /// Passes on what this rank alone knows, before each batch of several ranks, and says whether all stop here.
  /// `may_stop`: false inside an accumulation window that cannot be saved, where the others are not asked.
  bool stops_before_batch(bool may_stop);
  /// Ends the steps of a program that has a loop of its own. Throws levin::Error where other ranks take further ones,
  /// as `stops_before_batch` does where others have ended. `is_announced`: every rank has asked whether training stops
  /// before the next batch, which none takes.
  void end_steps(bool is_announced);
  /// Whether training ends here.
  bool should_end() const;
  /// Whether training ends here because somebody asked for it.
  bool ends_on_request() const {
    return ((agreed_ && !is_out_of_time()) || !reasons_.empty()) && minimum_reached() && !interrupted_;
  }
  /// Whether a run that goes on from a checkpoint saved here ends at once, and neither for max_epochs nor because a
  /// rank alone wants to stop.
  bool has_ended() const;
  /// Finds out whether any rank wants to stop; a collective, called where all ranks are at the same place.
  void agree();
  /// Says what ended training. `has_batches`: false where an epoch has none.
  std::string end_reason(bool has_batches) const;

  /// By who has them, in the order in which they came.
  using Reasons = std::vector<std::pair<const Callback*, std::string>>;
  /// Requests so far, for a dry run that takes back what it changes.
  struct Requests {
    bool agreed;
    std::string reason;
    std::string wish;
    Reasons reasons;
  };
  Requests requests() const { return {agreed_, reason_, wish_, reasons_}; }
  /// Takes back requests, and the time that has passed since.
  void restore(const Requests& requests, std::chrono::steady_clock::duration not_counted);

 private:
  static constexpr const char* kTokenReason = "its stop token asked for it";

  /// Number of that signal, or 0.
  int signal() const;
  bool limits_reached() const;
  /// Whether max_time is not longer than that.
  bool is_too_long(double seconds) const;
  /// Whether min_epochs and min_steps are, an epoch without further batches included: what follows its last batch is
  /// that of a run that ends.
  bool minimum_reached() const;
  /// Whether what the ranks agreed on is that max_time is over.
  bool is_out_of_time() const;
  bool wants_to_stop() const { return agreed_ || !reasons_.empty(); }
  /// Whether a run that goes on from a checkpoint of this moment finds out by itself when it ends, or is to go on.
  static bool is_for_now(const std::string& reason);
  void act_on(const std::string& reason);
  /// Acts on a request made elsewhere; returns whether there is a new one.
  bool take_pending();
  void pass_on(ControlPlane& control);
  /// Acts on a request that all ranks have agreed on.
  void take_over(const std::string& request);
  void take_over_signal(int signal, int64_t rank);
  [[noreturn]] void throw_unequal_ends(int64_t rank) const;

  const ResolvedOptions& options_;
  TrainerState& state_;
  Tracer& tracer_;
  Strategy& strategy_;
  std::stop_token token_;
  PendingStop pending_;
  std::atomic<std::thread::id> thread_{};  ///< that runs the call under way in this process
  bool pending_is_taken_ = false;          ///< in this call
  bool heeds_signals_ = true;
  std::chrono::steady_clock::time_point started_;
  double elapsed_before_ = 0;
  bool agreed_ = false;           ///< all ranks stop
  std::string reason_;            ///< why all ranks stop
  std::string wish_;              ///< why this rank alone wants to stop
  Reasons reasons_;               ///< that may pass
  bool forgets_reasons_ = false;  ///< those of callbacks that go on from a checkpoint were met before it
  bool interrupted_ = false;
  int64_t signalled_rank_ = -1;    ///< another rank, whose signal this process took over
  bool time_is_up_ = false;        ///< of several ranks: max_time is over, as all of them know
  bool time_passed_on_ = false;    ///< the other ranks were asked to stop for it
  bool signal_passed_on_ = false;  ///< likewise
};

}  // namespace levin
