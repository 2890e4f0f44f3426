#include <levin/callbacks/gradient_accumulation_scheduler.h>

#include <levin/core/trainer/trainer.h>

namespace levin {

void GradientAccumulationSchedulerOptions::describe(Schema<GradientAccumulationSchedulerOptions>& schema) {
  schema
      .field("scheduling", &GradientAccumulationSchedulerOptions::scheduling,
             "batches per optimizer step, keyed by first epoch: {0: 8, 4: 4}; required")
      .require("at least 1", [](const auto& schedule) { return schedule.fewest_batches() >= 1; })
      .require("given for epochs of at least 0", [](const auto& schedule) { return schedule.first_epoch() >= 0; });
}

GradientAccumulationScheduler::GradientAccumulationScheduler(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "gradient_accumulation_scheduler");
  if (options.scheduling == optim::AccumulationSchedule())
    throw ConfigError(
        "gradient_accumulation_scheduler.scheduling is required; got none; hint: "
        "gradient_accumulation_scheduler: {scheduling: {0: 8, 4: 4}}");
}

void GradientAccumulationScheduler::setup(Trainer& trainer, Module&, Stage stage) {
  if (stage != Stage::kFit) return;
  if (!trainer.options().accumulate_grad_batches.is_off())
    throw ConfigError(
        "trainer.accumulate_grad_batches and the callback gradient_accumulation_scheduler both say how many batches a "
        "step takes; hint: leave one of them out");
  trainer.set_accumulate_grad_batches(options_.scheduling);
}

}  // namespace levin
