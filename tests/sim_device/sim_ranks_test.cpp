#include "tests/sim_device/over_sim_nccl.h"
#include "tests/sim_device/sim_net.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/strategies/ddp/ddp.h>
#include <levin/strategies/pipeline/pipeline.h>
#include <levin/strategies/sharded/sharded.h>

#include <memory>
#include <string>

namespace levin::testing {
namespace {

template <class Base>
std::shared_ptr<Strategy> make_strategy(typename Base::Options options, bool on_sim) {
  options.start_method = StartMethod::kThread;
  options.timeout = 5;
  options.stall_report = 1;
  if (on_sim) return make<OverSimNccl<Base>>(options);
  return make<Base>(options);
}

template <class Base>
void expect_ranks_as_on_cpu(const typename Base::Options& options, const std::string& precision = "32-true",
                            bool predicts = true) {
  const auto run = [&](bool on_sim) {
    return fit({.configure =
                    [&](TrainerOptions& trainer) {
                      trainer.strategy = Spec<Strategy>(make_strategy<Base>(options, on_sim));
                      trainer.devices = 2;
                      trainer.precision = Spec<Precision>(Config::parse(precision, {}));
                      if (on_sim) trainer.accelerator = "sim";
                    },
                .predicts = predicts});
  };
  const SimResult expected = run(false);
  sim::reset_report();
  expect_equal(run(true), expected);
}

TEST(SimRanks, DdpTrainsAsOnCpus) { expect_ranks_as_on_cpu<Ddp>({}); }

TEST(SimRanks, DdpInBf16TrainsAsOnCpus) { expect_ranks_as_on_cpu<Ddp>({}, "bf16-mixed"); }

TEST(SimRanks, ShardedStagesTrainAsOnCpus) {
  for (int64_t stage = 1; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    expect_ranks_as_on_cpu<Sharded>({.stage = stage});
  }
}

TEST(SimRanks, OffloadedShardsTrainAsOnCpus) {
  for (const char* precision : {"32-true", "16-mixed"}) {
    SCOPED_TRACE(precision);
    expect_ranks_as_on_cpu<Sharded>({.stage = 2, .offload = true}, precision);
  }
}

// Stages 1 and 2 gather the parameters behind the step; on the CPU a thread that reads them then would have to wait.
TEST(SimRanks, HooksReadShardedParametersAfterTheStep) {
  for (const int64_t stage : {1, 2}) {
    SCOPED_TRACE(stage);
    fit({.configure = [stage](TrainerOptions& options) {
      options.strategy = Spec<Strategy>(make_strategy<Sharded>({.stage = stage}, /*on_sim=*/true));
      options.devices = 2;
      options.accelerator = "sim";
      options.callbacks = {make<LambdaCallback>(LambdaCallbackOptions{
          .on_train_batch_end = [](Trainer&, Module& module, const StepOutput&, const Batch&, int64_t) {
            for (const at::Tensor& parameter : module.parameters())
              EXPECT_TRUE(parameter.detach().cpu().isfinite().all().item<bool>());
          }})};
    }});
    EXPECT_TRUE(sim::report().faults.empty()) << sim::report().to_string();
  }
}

TEST(SimRanks, PipelinesTrainAsOnCpus) {
  for (const char* schedule : {"gpipe", "1f1b"}) {
    SCOPED_TRACE(schedule);
    expect_ranks_as_on_cpu<Pipeline>({.balance_by = "parameters", .schedule = schedule, .micro_batches = 4}, "32-true",
                                     /*predicts=*/false);
  }
}

// Disabled: the second call hangs. Rank 0's module is on its device by then, those of the others are new and on the
// host, and their agreement is broadcast by different backends (strategies/ranks/model_agreement.cpp).
TEST(SimRanks, DISABLED_PipelinesPredictAfterTraining) {
  expect_ranks_as_on_cpu<Pipeline>({.balance_by = "parameters", .micro_batches = 4});
}

// Disabled until its two directions have communicators of their own: the messages that each rank posts ahead hold each
// other up.
TEST(SimRanks, DISABLED_InterleavedPipelinesTrainAsOnCpus) {
  expect_ranks_as_on_cpu<Pipeline>(
      {.balance_by = "parameters", .schedule = "interleaved", .micro_batches = 4, .chunks_per_rank = 2});
}

TEST(SimRanks, GroupsAreShutDownAtTheEnd) {
  const int64_t before = sim::SimNccl::communicators_alive();
  expect_ranks_as_on_cpu<Ddp>({});
  EXPECT_EQ(sim::SimNccl::communicators_alive(), before);
}

TEST(SimRanks, DataParallelReplicasTrainAsOnCpus) {
  const auto run = [](bool on_sim) {
    return fit({.configure = [on_sim](TrainerOptions& options) {
      options.strategy = "dp";
      options.devices = 2;
      if (on_sim) options.accelerator = "sim";
    }});
  };
  const SimResult expected = run(false);
  sim::reset_report();
  expect_equal(run(true), expected);
}

}  // namespace
}  // namespace levin::testing
