#pragma once

#include <levin/core/base/signals.h>

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>

namespace levin {

/// Notes, while it exists, which of end_signals() reach this process, so that they can be passed on to children; they
/// are then handled as before.
///
/// A signal often reaches the children by itself as well: Ctrl-C goes to the whole foreground group, scancel to every
/// process of a job step. In a child such a pair counts as one signal, so that a wish for a clean end is not taken for
/// a second, impatient one.
///
/// Signals that the program does not handle are left alone: they end this process, and its lifeline the children. So
/// are all where SignalScope::leaves_handlers().
class SignalRelay {
 public:
  SignalRelay();
  ~SignalRelay();
  SignalRelay(const SignalRelay&) = delete;
  SignalRelay& operator=(const SignalRelay&) = delete;

  /// Calls `pass_on` for every signal that came since the last call.
  void poll(const std::function<void(int signal)>& pass_on);

  /// Makes the handling that of a child; called in a forked one, with these signals blocked and before the parent has
  /// called poll().
  void enter_child(pid_t parent) const;

 private:
  std::array<int64_t, kEndSignals.size()>
      passed_on_{};  ///< of each signal, how many came before the object, or were passed on
};

}  // namespace levin
