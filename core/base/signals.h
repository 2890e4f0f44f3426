#pragma once

#include <signal.h>

namespace levin {

/// Makes SIGINT and SIGTERM, during its lifetime, ask for a clean end instead of ending the process; a second one ends
/// it at once with the signal's own status. Nested scopes share one pair of handlers.
class SignalScope {
 public:
  SignalScope();
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

  /// Returns the number of the signal that came, or 0. Costs one relaxed load.
  static int received();

 private:
  struct sigaction old_interrupt_ {};
  struct sigaction old_terminate_ {};
};

}  // namespace levin
