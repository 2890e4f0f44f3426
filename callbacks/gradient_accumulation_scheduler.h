#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/callback.h>
#include <levin/core/optim/accumulation_schedule.h>

namespace levin {

struct GradientAccumulationSchedulerOptions {
  /// Batches an optimizer step, by the first epoch that they are for; required
  optim::AccumulationSchedule scheduling = {};

  static void describe(Schema<GradientAccumulationSchedulerOptions>& schema);
};

/// Accumulates gradients over so many batches, from so many epochs on. The same as a mapping for the trainer's
/// accumulate_grad_batches, which must be left alone then.
class GradientAccumulationScheduler final : public Callback {
 public:
  using Options = GradientAccumulationSchedulerOptions;

  explicit GradientAccumulationScheduler(const Options& options);

  void setup(Trainer& trainer, Module& module, Stage stage) override;

 private:
  const Options options_;
};

}  // namespace levin
