#pragma once

#include <atomic>
#include <mutex>
#include <string_view>

namespace levin {

/// Marks a trainer as at work during its lifetime, in the process that made the call: its ranks may be others.
class CallScope {
 public:
  /// `call`: its name. Throws levin::Error where another call is under way, on whichever thread. `at_work` outlives the
  /// scope.
  CallScope(std::atomic<bool>& at_work, std::string_view call) : at_work_(at_work) { begin(at_work, call); }
  /// Takes over what `begin` began.
  CallScope(std::atomic<bool>& at_work, std::adopt_lock_t /*begun*/) : at_work_(at_work) {}
  ~CallScope() { at_work_ = false; }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  /// Marks the trainer as at work until a scope takes over. Throws as the constructor does.
  static void begin(std::atomic<bool>& at_work, std::string_view call);

 private:
  std::atomic<bool>& at_work_;
};

}  // namespace levin
