#pragma once

namespace levin {

/// While one lives, metrics and Levin's losses look at the values that they are given on every device, and name the
/// first that is wrong, such as a label out of range. That makes the host wait for the device; without one nobody does,
/// and metrics look at values on the CPU alone. `trainer.detect_anomaly` keeps one for the length of a call. Shapes and
/// types are always checked.
class DebugChecks {
 public:
  DebugChecks();
  ~DebugChecks();
  DebugChecks(const DebugChecks&) = delete;
  DebugChecks& operator=(const DebugChecks&) = delete;

  /// Whether one lives, on any thread.
  static bool are_on();
};

}  // namespace levin
