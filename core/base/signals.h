#pragma once

#include <signal.h>

#include <array>
#include <span>

namespace levin {

/// The signals that can ask for a clean end.
inline constexpr std::array<int, 3> kEndSignals = {SIGINT, SIGTERM, SIGUSR1};

/// Those that do so here: SIGUSR1 in a job of SLURM only, where it also asks for the job to be requeued
/// (`sbatch --signal=USR1@SECONDS`, as in Lightning).
std::span<const int> end_signals();

/// Makes end_signals(), during its lifetime, ask for a clean end instead of ending the process; a second one ends it at
/// once with the signal's own status. Nested scopes share the handlers.
class SignalScope {
 public:
  /// `handles`: false leaves the program's own handlers as they are; only signals that are adopted end anything then.
  explicit SignalScope(bool handles = true);
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

  /// Returns the number of the signal that came, or else of the one that was adopted, or 0. Costs relaxed loads.
  static int received();
  /// Takes over the signal that ends training on another rank, so that this process ends with the same status. The
  /// first signal that comes here still counts as the first. Thread-safe.
  static void adopt(int signal);
  /// Returns whether there are scopes, all of which leave the program's handlers as they are.
  static bool leaves_handlers();

 private:
  const bool handles_;
};

}  // namespace levin
