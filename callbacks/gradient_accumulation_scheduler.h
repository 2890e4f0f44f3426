#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/optim/accumulation_schedule.h>

namespace levin {

/// Options of GradientAccumulationScheduler, explained in describe().
struct GradientAccumulationSchedulerOptions {
  /// Batches in an optimizer step, by the 0-based epoch from which on they hold; required
  optim::AccumulationSchedule scheduling = {};

  static void describe(Schema<GradientAccumulationSchedulerOptions>& schema);
};

/// Changes the number of batches in an optimizer step at given epochs. The same as a mapping for the trainer's
/// accumulate_grad_batches, which must then be left alone.
class GradientAccumulationScheduler final : public Callback {
 public:
  using Options = GradientAccumulationSchedulerOptions;

  explicit GradientAccumulationScheduler(const Options& options);

  void setup(Trainer& trainer, Module& module, Stage stage) override;

 private:
  const Options options_;
};

}  // namespace levin
