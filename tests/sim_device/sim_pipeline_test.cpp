#include "tests/sim_device/over_sim_nccl.h"
#include "tests/sim_device/sim_net.h"

#include <levin/strategies/pipeline/pipeline.h>

#include <string>
#include <vector>

namespace levin::testing {
namespace {

struct PipelineRun {
  PipelineOptions options = {};
  int64_t ranks = 2;
  TinyOptions net = {};
  std::function<void(TrainerOptions&)> configure = [](TrainerOptions&) {};
};

SimResult fit_pipeline(const PipelineRun& run, bool on_sim) {
  return fit({.net = run.net, .configure = [&](TrainerOptions& trainer) {
                PipelineOptions options = run.options;
                options.micro_batches = 4;
                if (options.balance_by == "time") options.balance_by = "parameters";
                trainer.strategy = Spec<Strategy>(make_strategy<Pipeline>(options, on_sim));
                trainer.devices = run.ranks;
                if (on_sim) trainer.accelerator = "sim";
                run.configure(trainer);
              }});
}

void expect_pipeline_as_on_cpus(const PipelineRun& run) {
  const SimResult expected = fit_pipeline(run, /*on_sim=*/false);
  sim::reset_report();
  expect_equal(fit_pipeline(run, /*on_sim=*/true), expected);
}

const char* const kSchedules[] = {"gpipe", "1f1b", "interleaved", "zero_bubble"};

TEST(SimPipeline, EveryScheduleTrainsAndPredictsAsOnCpus) {
  for (const char* schedule : kSchedules) {
    for (const int64_t stages : {2, 3}) {
      SCOPED_TRACE(std::string(schedule) + ", stages: " + std::to_string(stages));
      expect_pipeline_as_on_cpus({.options = {.schedule = schedule}, .ranks = stages});
    }
  }
}

TEST(SimPipeline, FourStagesTrainAsOnCpus) {
  for (const char* schedule : {"1f1b", "zero_bubble"}) {
    SCOPED_TRACE(schedule);
    expect_pipeline_as_on_cpus({.options = {.schedule = schedule}, .ranks = 4});
  }
}

TEST(SimPipeline, ThreeChunksOnEachOfTwoRanksTrainAsOnCpus) {
  expect_pipeline_as_on_cpus({.options = {.schedule = "interleaved", .chunks_per_rank = 3}});
}

TEST(SimPipeline, PipelinesSideBySideTrainAsOnCpus) {
  for (const char* schedule : kSchedules) {
    for (const bool shard_optimizer : {false, true}) {
      SCOPED_TRACE(std::string(schedule) + (shard_optimizer ? ", shard_optimizer" : ""));
      expect_pipeline_as_on_cpus(
          {.options = {.schedule = schedule, .data_parallel = 2, .shard_optimizer = shard_optimizer}, .ranks = 4});
    }
  }
}

TEST(SimPipeline, DropoutClippingAndLowPrecisionAreThoseOfCpus) {
  for (const char* precision : {"32-true", "bf16-mixed", "16-mixed"}) {
    for (const char* checkpoint : {"never", "always"}) {
      SCOPED_TRACE(std::string(precision) + ", checkpoint: " + checkpoint);
      expect_pipeline_as_on_cpus({.options = {.checkpoint = checkpoint},
                                  .net = {.dropout = 0.3},
                                  .configure = [&](TrainerOptions& options) {
                                    options.precision = precision;
                                    options.gradient_clip_val = 0.1;
                                    options.accumulate_grad_batches = 2;
                                  }});
    }
  }
}

}  // namespace
}  // namespace levin::testing
