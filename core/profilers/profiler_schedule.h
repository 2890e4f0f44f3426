#pragma once

#include <levin/core/base/schema.h>

#include <cstdint>

namespace levin {

/// What a profiler does during a step.
enum class ProfilerAction {
  kNone,
  kWarmup,         ///< it gets ready, so that the first recorded step does not pay for it
  kRecord,         ///< it records
  kRecordAndSave,  ///< it records the last step of a window
};

/// Which steps are recorded: skip the first, then wait, warm up, record, and so on again. The same as
/// torch.profiler.schedule.
struct ProfilerSchedule {
  int64_t skip_first = 0;        ///< steps before the first cycle
  int64_t wait = 1;              ///< steps of a cycle without profiling
  int64_t warmup = 1;            ///< steps before those recorded
  int64_t active = 3;            ///< steps that are recorded
  int64_t repeat = 1;            ///< cycles; 0: until the end
  bool skip_first_wait = false;  ///< the first cycle does not wait

  /// `step`: counted from 0.
  ProfilerAction action(int64_t step) const;
  static void describe(Schema<ProfilerSchedule>& schema);
};

}  // namespace levin
