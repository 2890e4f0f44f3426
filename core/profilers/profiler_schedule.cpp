#include <levin/core/profilers/profiler_schedule.h>

namespace levin {
namespace {

constexpr int64_t kMostProfiledSteps = 1'000'000'000;

}  // namespace

void ProfilerSchedule::describe(Schema<ProfilerSchedule>& schema) {
  schema.field("skip_first", &ProfilerSchedule::skip_first, "steps before the first cycle")
      .at_least(0)
      .at_most(kMostProfiledSteps);
  schema.field("wait", &ProfilerSchedule::wait, "steps of a cycle without profiling")
      .at_least(0)
      .at_most(kMostProfiledSteps);
  schema.field("warmup", &ProfilerSchedule::warmup, "steps to warm up the profiler before it records")
      .at_least(0)
      .at_most(kMostProfiledSteps);
  schema.field("active", &ProfilerSchedule::active, "steps that are recorded, into one trace")
      .at_least(1)
      .at_most(kMostProfiledSteps);
  schema.field("repeat", &ProfilerSchedule::repeat, "number of cycles; 0: until the end").at_least(0);
  schema.field("skip_first_wait", &ProfilerSchedule::skip_first_wait, "the first cycle does not wait");
}

ProfilerAction ProfilerSchedule::action(int64_t step) const {
  if (step < skip_first) return ProfilerAction::kNone;
  step -= skip_first;
  if (skip_first_wait) step += wait;
  const int64_t cycle = wait + warmup + active;
  if (repeat > 0 && step / cycle >= repeat) return ProfilerAction::kNone;
  const int64_t in_cycle = step % cycle;
  if (in_cycle < wait) return ProfilerAction::kNone;
  if (in_cycle < wait + warmup) return ProfilerAction::kWarmup;
  return in_cycle < cycle - 1 ? ProfilerAction::kRecord : ProfilerAction::kRecordAndSave;
}

}  // namespace levin
