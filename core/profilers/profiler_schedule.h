#pragma once

#include <levin/core/base/schema.h>

#include <cstdint>

namespace levin {

/// Action of a profiler in a step.
enum class ProfilerAction {
  kNone,
  kWarmup,         ///< starts up, so that the first recorded step does not pay for it
  kRecord,         ///< records
  kRecordAndSave,  ///< records the last step of a window, then saves the window
};

/// Choice of the steps to record: skips the first ones, then waits, warms up and records, in cycles, as
/// torch.profiler.schedule does.
struct ProfilerSchedule {
  int64_t skip_first = 0;
  int64_t wait = 1;
  int64_t warmup = 1;
  int64_t active = 3;
  int64_t repeat = 1;
  bool skip_first_wait = false;

  /// Returns the action in a step, counted from 0.
  ProfilerAction action(int64_t step) const;
  static void describe(Schema<ProfilerSchedule>& schema);
};

}  // namespace levin
