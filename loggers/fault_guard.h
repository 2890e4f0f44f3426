#pragma once

#include <levin/core/base/error.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace levin {

/// Keeps a logger's trouble with its files away from training: the first failure is a warning, later ones are silent,
/// and writing is tried again from time to time, since a full disk may be cleared and a share may come back.
class FaultGuard {
 public:
  /// `logger`: the name for messages, such as "CSV logger".
  explicit FaultGuard(std::string logger) : logger_(std::move(logger)) {}

  /// Calls `write`; false when it threw levin::Error. After a failure, calls that come too soon return false without
  /// trying; `now_or_never` tries all the same.
  template <class Write>
  bool run(bool now_or_never, const Write& write) {
    if (failing_ && !now_or_never && std::chrono::steady_clock::now() < next_try_) return false;
    try {
      write();
      failing_ = false;
      return true;
    } catch (const Error& error) {
      failed(error);
      return false;
    }
  }

  bool failing() const { return failing_; }
  /// Says at the end of a run what could not be kept; nothing when `count` is 0.
  void report_lost(int64_t count, const std::string& what) const;
  /// Makes the next failure warn again.
  void reset() { failing_ = warned_ = false; }

 private:
  void failed(const Error& error);

  const std::string logger_;
  bool failing_ = false;
  bool warned_ = false;
  std::chrono::steady_clock::time_point next_try_;
};

}  // namespace levin
